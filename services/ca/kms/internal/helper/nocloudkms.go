//go:build !cloudkms

package helper

func openCloudKMS() opener { return nil }
