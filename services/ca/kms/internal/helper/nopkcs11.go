//go:build !cgo

package helper

func openPKCS11() opener { return nil }
