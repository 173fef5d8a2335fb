package route

import (
	"slices"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

func emptyReader(t *testing.T, namespace, domain string) *input.Reader {
	t.Helper()
	key := &class.Key{Type: class.Sidecar, Interception: class.Redirect, Namespace: namespace, DNSDomain: domain}
	return input.NewView(key, meshtest.State(t)).Reader()
}

func TestShortNames(t *testing.T) {
	const host = "reviews.default.svc.cluster.local"
	for _, tc := range []struct{ host, namespace, domain, want string }{
		{host, "default", "default.svc.cluster.local", "reviews.default reviews.default.svc reviews"},
		{host, "other", "other.svc.cluster.local", "reviews.default reviews.default.svc"},
		{host, "default", "default.svc.my.domain", ""},
		{"www.example.com", "default", "default.svc.cluster.local", ""},
		{"*.default.svc.cluster.local", "default", "default.svc.cluster.local", ""},
		{"a.b.c.svc.cluster.local", "c", "c.svc.cluster.local", ""},
		{host, "default", "", ""},
	} {
		r := emptyReader(t, tc.namespace, tc.domain)
		short := shortNames(r, tc.host)
		if got := strings.Join(short, " "); got != tc.want || r.Scope() != input.MeshScope {
			t.Errorf("%s for %s in %q: %q for %d, want %q", tc.host, tc.namespace, tc.domain, got, r.Scope(), tc.want)
		}
		for _, name := range short {
			if hostname, ok := CompleteHostname(r, name); !ok || hostname != tc.host {
				t.Errorf("%q in %q is completed to %q", name, tc.namespace, hostname)
			}
		}
	}
}

func TestCompleteHostname(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a.ns.svc.cluster.local", "a.b": "a.b.svc.cluster.local", "a.b.svc": "a.b.svc.cluster.local", "a.svc": "a.svc.svc.cluster.local",
		"a.b.c": "", "": "", ".": "", "a.": "", ".a": "", "*": "", "*.b": "", "a.b.c.svc": "", "..svc": "",
	} {
		r := emptyReader(t, "ns", "ns.svc.cluster.local")
		got, ok := CompleteHostname(r, name)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %v, want %q", name, got, ok, want)
		}
		if personal := !strings.Contains(name, ".") && name != ""; personal != (r.Scope() != input.MeshScope) {
			t.Errorf("%q: reach %d", name, r.Scope())
		}
	}
}

func TestOtherDomains(t *testing.T) {
	r := emptyReader(t, "other", "other.svc.cluster.local")
	for _, tc := range []struct {
		name string
		svc  *configv1.Service
		want string
	}{
		{"addresses that a client can write", &configv1.Service{
			Hostname: "a.example.com", Addresses: []string{"10.0.0.1", "10.1.0.0/16", "0.0.0.0", "FD00::1"},
			AutoAddresses: []string{"240.240.0.1", "2001:2::1"},
		}, "10.0.0.1 [fd00::1]"},
		{"addresses that a client does not know", &configv1.Service{Hostname: "a.example.com", AutoAddresses: []string{"240.240.0.1"}}, ""},
		{"Pods of a headless service", &configv1.Service{Hostname: "db.default.svc.cluster.local", Namespace: "default", Headless: true},
			"db.default db.default.svc *.db.default.svc.cluster.local *.db.default *.db.default.svc"},
		{"a wildcard has no Pods", &configv1.Service{Hostname: "*.example.com", Headless: true}, ""},
	} {
		if got := strings.Join(otherDomains(r, tc.svc.GetHostname(), tc.svc), " "); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestWithFinalDot(t *testing.T) {
	for hostname, want := range map[string]string{"a.b": "a.b.", "a": "a.", "*.b": "", "10.0.0.1": "", "fd00::1": ""} {
		if got := strings.Join(withFinalDot(hostname), " "); got != want {
			t.Errorf("%q: %q, want %q", hostname, got, want)
		}
	}
}

func TestIsCanonical(t *testing.T) {
	for hostname, want := range map[string]bool{
		"a": true, "a.b": true, "*.b": true, "10.0.0.1": true, "fd00::1": true,
		"": false, "*": false, "a.b.": false, "A.b": false, "FD00::1": false, "fd00:0::1": false, "[fd00::1]": false, "a/b": false, "a.*": false,
		"*.*.b": false, "*b": false,
	} {
		if got := isCanonical(hostname); got != want {
			t.Errorf("%q: %v", hostname, got)
		}
	}
}

func TestWithoutPort(t *testing.T) {
	for authority, want := range map[string]string{
		"a": "a", "a:80": "a", "a:": "a", "[fd00::1]": "[fd00::1]", "[fd00::1]:80": "[fd00::1]", "10.0.0.1:80": "10.0.0.1",
	} {
		if got := withoutPort(authority); got != want {
			t.Errorf("%q: %q, want %q", authority, got, want)
		}
	}
}

func TestIsAuthority(t *testing.T) {
	long := strings.Repeat("a", maxAuthority)
	good := []string{"a", "a.b:80", "[fd00::1]:80", "10.0.0.1", "a_b", "a.", long}
	bad := []string{"", "*", "*.com", "a.*", "a b", "a\x00", "a\n", "a\x7f", "ä.example.com", "a/b", long + "a"}
	for _, s := range slices.Concat(good, bad) {
		if isAuthority(s) != slices.Contains(good, s) {
			t.Errorf("%q: %v", s, isAuthority(s))
		}
	}
}
