from .fdfi import FlowImportance as FlowImportance
from .fdfi import ImportanceTable as ImportanceTable
