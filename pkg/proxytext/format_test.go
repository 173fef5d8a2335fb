package proxytext_test

import (
	"strings"
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

// TestHeaderValue: a header value may have the commands that tell about the request, and no others.
func TestHeaderValue(t *testing.T) {
	for value, want := range map[string]string{
		"a %REQ(x-id)% %DOWNSTREAM_PEER_URI_SAN% %UPSTREAM_HOST% %DYNAMIC_METADATA(a:b)% %HOSTNAME% 5%%": "",
		"%ENVIRONMENT(AWS_SECRET_ACCESS_KEY)%":                              "command %ENVIRONMENT% tells of the proxy itself",
		"a %REQ(x)%%ENVIRONMENT(X):3%":                                      "they may have REQ, RESP",
		"%FILTER_STATE(a)%":                                                 "command %FILTER_STATE%",
		"%UPSTREAM_FILTER_STATE(a:PLAIN)%":                                  "command %UPSTREAM_FILTER_STATE%",
		"%METADATA(LISTENER:a:b)%":                                          "command %METADATA%",
		`%COALESCE({"operators":[{"command":"ENVIRONMENT","param":"A"}]})%`: "unknown command %COALESCE%",
		"%CEL(request.path)%":                                               "unknown command %CEL%",
		"%FILE_CONTENT(/etc/passwd)%":                                       "unknown command",
		"%%ENVIRONMENT(X)%%":                                                "",
		"%%%ENVIRONMENT(X)%":                                                "command %ENVIRONMENT%",
	} {
		err := proxytext.HeaderValue(value)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
	if err := proxytext.Format("%ENVIRONMENT(A)% %FILTER_STATE(a)% %METADATA(ROUTE:a:b)%"); err != nil {
		t.Errorf("an access log: %v", err)
	}
}
