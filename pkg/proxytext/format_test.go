package proxytext_test

import (
	"testing"

	"fairlead.dev/pkg/proxytext"
)

func TestFormat(t *testing.T) {
	for value, ok := range map[string]bool{
		"":                                 true,
		"plain":                            true,
		"100%%":                            true,
		"%DOWNSTREAM_REMOTE_ADDRESS%":      true,
		"a %REQ(X-A?X-B):10% b":            true,
		"%START_TIME(%s.%3f)%":             true,
		"100%":                             false,
		"%":                                false,
		"%lower%":                          false,
		"%REQ(X-A)":                        false,
		"%DYNAMIC_METADATA(a:b)% and 5 % ": false,
		"%PROTOCOL()%%HOSTNAME%":           true,
		"%PROTOCOL(a)%":                    false,
		"%PROTOCOL:5%":                     false,
		"%REQ%":                            false,
		"%REQ(a b)%":                       false,
		"%REQ(:METHOD)%":                   true,
		"%FILTER_STATE(a.b:PLAIN):7%":      true,
		"%FILTER_STATE(a.b:JSON)%":         false,
		"%CLUSTER_METADATA(a:b):7%":        false,
		"%GRPC_STATUS(NUMBER)%":            true,
		"%GRPC_STATUS(NONE)%":              false,
		"%FOO%":                            false,
	} {
		if err := proxytext.Format(value); (err == nil) != ok {
			t.Errorf("%q: %v", value, err)
		}
	}
}
