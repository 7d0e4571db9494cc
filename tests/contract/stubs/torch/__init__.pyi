# The two names of torch that the contract's annotations use, so that a run of mypy takes seconds.
class dtype: ...

class Tensor:
    shape: tuple[int, ...]

def empty(*size: int) -> Tensor: ...
