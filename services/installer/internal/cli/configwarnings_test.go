package cli_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func warningAbout(namespace, name, text string) *configv1.Warning {
	return &configv1.Warning{Object: &configv1.ObjectKey{Kind: "VirtualService", Namespace: namespace, Name: name}, Text: text}
}

// TestWritesWarnAboutOtherObjects: a write prints the warnings that it causes about other objects, but not about those
// that the same command deletes.
func TestWritesWarnAboutOtherObjects(t *testing.T) {
	m := newFixture(t)
	m.SetWarnings(nil, []*configv1.Warning{warningAbout("shop", "other", "VirtualService shop/other: no host")})
	name := file(t, object)
	if out, _, err := m.run("", "config", "apply", "-f", name); err != nil ||
		out != "VirtualService shop/web created\nwarning: now wrong: VirtualService shop/other: no host\n" {
		t.Errorf("apply: %q, %v", out, err)
	}
	if out, _, err := m.run("", "config", "apply", "-f", name, "--dry-run"); err != nil ||
		out != "VirtualService shop/web configured (dry run)\nwarning: would be wrong: VirtualService shop/other: no host\n" {
		t.Errorf("dry run: %q, %v", out, err)
	}
	out, _, err := m.run("", "config", "apply", "-f", name, "-o", "json")
	var answer struct{ Broken []string }
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil ||
		!slices.Equal(answer.Broken, []string{"VirtualService shop/other: no host"}) {
		t.Errorf("apply -o json: %q, %v", out, err)
	}
	m.SetWarnings(nil, []*configv1.Warning{warningAbout("shop", "web", "VirtualService shop/web: no host"),
		warningAbout("bank", "web", "VirtualService bank/web: no host")})
	if out, _, err := m.run("", "config", "delete", "-f", name); err != nil ||
		out != "VirtualService shop/web deleted\nwarning: now wrong: VirtualService bank/web: no host\n" {
		t.Errorf("delete: %q, %v", out, err)
	}
}

// TestWhyShowsWarnings: why prints the warnings about the objects that it names, and about others for the host.
func TestWhyShowsWarnings(t *testing.T) {
	m := newFixture(t)
	m.SetFleet(twoProxies(), nil)
	m.SetWarnings([]*configv1.Warning{
		{Object: &configv1.ObjectKey{Kind: "DestinationRule", Namespace: "shop", Name: "reviews"}, Text: "made from"},
		{Object: &configv1.ObjectKey{Kind: "DestinationRule", Namespace: "else", Name: "reviews"}, Text: "passed over"},
		{Source: "reviews.shop.svc.cluster.local", Text: "of the host"},
		{Source: "ratings.shop.svc.cluster.local", Text: "of another host"},
	}, nil)
	dir := m.runMesh(t, xdsPort(t, twoProxies()[0].GetNodeId(), map[string]func(url.Values) (any, error){"/debug/why": explain}))
	for _, name := range []string{"outbound|80|v1|reviews.shop.svc.cluster.local", "15080/reviews.shop.svc.cluster.local:9080"} {
		out, _, err := run("", "why", "a", name, "--run-dir", dir)
		if err != nil || !strings.HasSuffix(out, "\nwarnings:\n  made from\n  passed over\n  of the host\n") {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	m.SetWarnings(nil, nil)
	if out, _, err := run("", "why", "a", "outbound|80||reviews", "--run-dir", dir); err != nil || strings.Contains(out, "warnings") {
		t.Errorf("nothing is wrong: %q, %v", out, err)
	}
}
