package vault

func stopShared() {}
