package ipaddress_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/normalise/ipaddress"
)

func TestAddressesOfFamilies(t *testing.T) {
	all := []string{"10.0.0.1", "fd00::1", "db.example.com", "10.0.0.2"}
	for name, tc := range map[string]struct {
		families []corev1.IPFamily
		want     []string
	}{
		"none named": {nil, all},
		"IPv4":       {[]corev1.IPFamily{corev1.IPv4Protocol}, []string{"10.0.0.1", "db.example.com", "10.0.0.2"}},
		"IPv6 first": {
			[]corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, []string{"fd00::1", "db.example.com", "10.0.0.1", "10.0.0.2"},
		},
	} {
		if got := ipaddress.OfFamilies(all, tc.families); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestCanonicalAddresses(t *testing.T) {
	got := ipaddress.Canonical([]string{"fd00:0::1", "10.1.2.3/8", "10.0.0.1/32", "10.0.0.1", "x"})
	if want := []string{"10.0.0.0/8", "10.0.0.1", "fd00::1", "x"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
