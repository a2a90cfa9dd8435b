"""Long measurements that back the figures in the documents: they accumulate over sittings and can be resumed."""
