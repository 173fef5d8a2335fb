package proxy_test

import (
	"net/url"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// TestWhyShowsWarnings: why prints the warnings about the objects that it names, and about others for the host.
func TestWhyShowsWarnings(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(clitest.TwoProxies(), nil)
	m.SetWarnings([]*configv1.Warning{
		{Object: &configv1.ObjectKey{Kind: "DestinationRule", Namespace: "shop", Name: "reviews"}, Text: "made from"},
		{Object: &configv1.ObjectKey{Kind: "DestinationRule", Namespace: "else", Name: "reviews"}, Text: "passed over"},
		{Source: "reviews.shop.svc.cluster.local", Text: "of the host"},
		{Source: "ratings.shop.svc.cluster.local", Text: "of another host"},
	}, nil)
	answers := map[string]func(url.Values) (any, error){"/debug/why": explain}
	dir := m.RunMesh(t, clitest.XDSPort(t, clitest.TwoProxies()[0].GetNodeId(), answers))
	for _, name := range []string{"outbound|80|v1|reviews.shop.svc.cluster.local", "15080/reviews.shop.svc.cluster.local:9080"} {
		out, _, err := clitest.Run("", "why", "a", name, "--run-dir", dir)
		if err != nil || !strings.HasSuffix(out, "\nwarnings:\n  made from\n  passed over\n  of the host\n") {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	m.SetWarnings(nil, nil)
	if out, _, err := clitest.Run("", "why", "a", "outbound|80||reviews", "--run-dir", dir); err != nil || strings.Contains(out, "warnings") {
		t.Errorf("nothing is wrong: %q, %v", out, err)
	}
}
