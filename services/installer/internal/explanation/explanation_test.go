package explanation

import (
	"slices"
	"strings"
	"testing"

	"fairlead.dev/proto/fairlead/contract"
)

func TestAHostMeansItsOnlyVirtualHost(t *testing.T) {
	cluster, one, other := contract.ResourceName{Type: "clusters", Name: "c"}, contract.ResourceName{Type: "virtualhosts", Name: "9080/web"},
		contract.ResourceName{Type: "virtualhosts", Name: "80/web"}
	if got := onlyVirtualHost([]contract.ResourceName{cluster, one}); got == nil || *got != one {
		t.Errorf("%v", got)
	}
	for _, none := range [][]contract.ResourceName{nil, {cluster}, {one, cluster, other}} {
		if got := onlyVirtualHost(none); got != nil {
			t.Errorf("%v: %v", none, got)
		}
	}
	if err := ambiguous("web", []contract.ResourceName{cluster, one, other}); !strings.Contains(err.Error(), "virtualhosts   9080/web") {
		t.Error(err)
	}
}

func TestHostOfAResource(t *testing.T) {
	for name, want := range map[string][]string{
		"outbound|9080|v1|reviews.shop.svc.cluster.local": {"reviews.shop.svc.cluster.local"},
		"9080/reviews.shop.svc.cluster.local:9080":        {"reviews.shop.svc.cluster.local"},
		"virtualInbound": nil,
	} {
		e := &Explanation{}
		e.Name = name
		if got := e.hosts(); !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
