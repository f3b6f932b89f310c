from .merge_kernel import MallowsKernel as MallowsKernel
from .merge_kernel import MergeKernel as MergeKernel
from .merge_kernel import PermutationBO as PermutationBO
from .merge_kernel import from_merge_features as from_merge_features
from .merge_kernel import mallows_features as mallows_features
from .merge_kernel import merge_features as merge_features
from .merge_kernel import merge_length as merge_length
from .merge_kernel import optimize_acqf_permutation as optimize_acqf_permutation
