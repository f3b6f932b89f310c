from .merge_kernel import MallowsKernel as MallowsKernel
from .merge_kernel import MergeKernel as MergeKernel
from .merge_kernel import PermutationBO as PermutationBO
