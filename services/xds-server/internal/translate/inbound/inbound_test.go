package inbound

import (
	"strings"
	"testing"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
)

func TestDefaultEndpointForms(t *testing.T) {
	captured := &class.Key{Interception: class.Redirect}
	bound := &class.Key{Interception: class.None, Addresses: []string{"127.66.1.1"}}
	for _, tc := range []struct {
		endpoint string
		key      *class.Key
		want     Destination
		err      string
	}{
		{"", captured, Destination{}, ""},
		{"127.0.0.1:8080", captured, Destination{Address: "127.0.0.1", Port: 8080}, ""},
		{":8080", captured, Destination{Address: "127.0.0.1", Port: 8080}, ""},
		{"[::1]:8080", captured, Destination{Address: "::1", Port: 8080}, ""},
		{"0.0.0.0:8080", captured, Destination{Port: 8080}, ""},
		{"[::]:8080", bound, Destination{Address: "127.66.1.1", Port: 8080}, ""},
		{"unix:///run/app.sock", captured, Destination{Pipe: "/run/app.sock"}, ""},
		{"10.0.0.1:80", captured, Destination{}, "only loopback"},
		{"example.com:80", captured, Destination{}, "use 127.0.0.1:PORT"},
		{"127.0.0.1", captured, Destination{}, "missing port"},
		{"127.0.0.1:0", captured, Destination{}, "1-65535"},
		{"127.0.0.1:http", captured, Destination{}, "1-65535"},
	} {
		got, err := destination(input.NewView(tc.key, mesh.Empty()).Reader(), tc.endpoint)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q: %+v, %v, want %+v, %q", tc.endpoint, got, err, tc.want, tc.err)
		}
	}
}
