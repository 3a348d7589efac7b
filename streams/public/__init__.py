"""What users see and send, by public topics alone: runs, rows, receipts, cells. Used by ``client`` and the command line."""
