//go:build !azurekms

package helper

func openAzureKMS() opener { return nil }
