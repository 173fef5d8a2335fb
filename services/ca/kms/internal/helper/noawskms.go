//go:build !awskms

package helper

func openAmazonKMS() opener { return nil }
