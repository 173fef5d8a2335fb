package locality_test

import (
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise/locality"
)

func TestLocalities(t *testing.T) {
	const region, zone, subzone = "topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"
	for name, tc := range map[string]struct {
		got  *configv1.Locality
		want string // "" for none
	}{
		"an empty text":            {locality.Parse(""), ""},
		"a region":                 {locality.Parse("eu"), "eu//"},
		"all three":                {locality.Parse("eu/a/1"), "eu/a/1"},
		"more than three":          {locality.Parse("eu/a/1/2"), "eu/a/1/2"},
		"a Pod without the label":  {locality.OfPod(nil), ""},
		"a Pod's label":            {locality.OfPod(map[string]string{"istio-locality": "eu.a.1"}), "eu/a/1"},
		"a Pod's label of slashes": {locality.OfPod(map[string]string{"istio-locality": "e.u/a.b"}), "e.u/a.b/"},
		"a Node without labels":    {locality.OfTopology(map[string]string{subzone: "1"}), ""},
		"a Node":                   {locality.OfTopology(map[string]string{region: "eu", zone: "a", subzone: "1"}), "eu/a/1"},
		"a Node's zone alone":      {locality.OfTopology(map[string]string{zone: "a"}), "/a/"},
		"a Node's older labels": {locality.OfTopology(map[string]string{
			"failure-domain.beta.kubernetes.io/region": "us", "failure-domain.beta.kubernetes.io/zone": "b", region: "eu",
		}), "eu/b/"},
	} {
		if (tc.got == nil) != (tc.want == "") || tc.got != nil && locality.Text(tc.got) != tc.want {
			t.Errorf("%s: %v, want %q", name, tc.got, tc.want)
		}
	}
}
