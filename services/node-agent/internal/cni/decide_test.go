package cni

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"fairlead.dev/services/node-agent/internal/cni/kube"
	"fairlead.dev/services/node-agent/internal/redirect"
)

// pod is a Pod as injection writes it; edits are replacements of its text.
func pod(t testing.TB, edits ...string) *kube.Pod {
	t.Helper()
	text := strings.NewReplacer(edits...).Replace(`
metadata:
  name: web-1
  namespace: apps
  uid: u-1
  labels: {app: web}
  annotations: {sidecar.istio.io/status: "{}"}
spec:
  securityContext: {}
  initContainers: [{name: istio-validation}]
  containers:
  - {name: app}
  - {name: istio-proxy, args: [proxy, sidecar], env: [{name: A, value: b}]}
status:
  initContainerStatuses: [{name: istio-validation, state: {terminated: {exitCode: 126}}}]
`)
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := &kube.Pod{}
	if err := json.Unmarshal(raw, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDecideLeavesPodsAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		edits []string
		why   string
	}{
		"in the node's network":  {[]string{"securityContext: {}", "hostNetwork: true"}, "node's network"},
		"with an init container": {[]string{"name: istio-validation", "name: istio-init"}, "istio-init"},
		"without a proxy":        {[]string{"name: istio-proxy", "name: proxy"}, "no container istio-proxy"},
		"of a gateway":           {[]string{"sidecar]", "router]"}, "router"},
		"off by label":           {[]string{"{app: web}", `{sidecar.istio.io/inject: "false"}`}, "inject"},
		"off by annotation":      {[]string{`status: "{}"`, `status: "{}", sidecar.istio.io/inject: "false"`}, "inject"},
		"not injected":           {[]string{"sidecar.istio.io/status", "x"}, "sidecar.istio.io/status"},
		"whose Envoy is off":     {[]string{"{name: A, value: b}", `{name: DISABLE_ENVOY, value: "true"}`}, "DISABLE_ENVOY"},
	} {
		answer, why, err := decide(pod(t, tc.edits...), nil)
		if err != nil || answer.Redirect || !strings.Contains(why, tc.why) {
			t.Errorf("%s: %v, %q, %v", name, answer.Redirect, why, err)
		}
	}
}

func TestDecideOnPodsWithASidecar(t *testing.T) {
	for name, tc := range map[string]struct {
		edits []string
		check func(*redirect.Options) bool
	}{
		"as injected": {nil, func(o *redirect.Options) bool {
			return o.Mode == redirect.Redirect && slices.Equal(o.UIDs, []uint32{1337}) && o.InboundPorts.All
		}},
		"a native sidecar": {[]string{"[{name: istio-validation}]", "[{name: istio-proxy, args: [proxy, sidecar]}]", "- {name: istio-proxy",
			"- {name: other"}, func(o *redirect.Options) bool { return o.Mode == redirect.Redirect }},
		"the label decides": {[]string{"{app: web}", `{sidecar.istio.io/inject: "true"}`, `status: "{}"`,
			`status: "{}", sidecar.istio.io/inject: "false"`}, func(o *redirect.Options) bool { return o.Mode == redirect.Redirect }},
		"annotations": {
			[]string{
				`status: "{}"`, `status: "{}", traffic.sidecar.istio.io/excludeOutboundPorts: "22,25", sidecar.istio.io/interceptionMode: TPROXY, status.sidecar.istio.io/port: "15999"`}, func(o *redirect.Options) bool {
				return o.Mode == redirect.TProxy && slices.Equal(o.OutboundPortsExcluded.List, []uint16{22, 25}) &&
					slices.Contains(o.InboundPortsExcluded.List, 15999)
			}},
		"the container's user": {[]string{"env: [{name: A, value: b}]", "securityContext: {runAsUser: 7, runAsGroup: 8}"},
			func(o *redirect.Options) bool {
				return slices.Equal(o.UIDs, []uint32{7}) && slices.Equal(o.GIDs, []uint32{8})
			}},
		"the Pod's user": {[]string{"securityContext: {}", "securityContext: {runAsUser: 9}"}, func(o *redirect.Options) bool {
			return slices.Equal(o.UIDs, []uint32{9}) && slices.Equal(o.GIDs, []uint32{1337})
		}},
		"a proxy that is root": {[]string{"securityContext: {}", "securityContext: {runAsUser: 0}"},
			func(o *redirect.Options) bool { return slices.Equal(o.UIDs, []uint32{1337}) }},
		"DNS, by a variable": {[]string{"{name: A, value: b}", `{name: ISTIO_META_DNS_CAPTURE, value: "true"}`},
			func(o *redirect.Options) bool { return o.RedirectDNS && len(o.Nameservers) == 1 }},
		"DNS, by ProxyConfig": {
			[]string{`status: "{}"`, `status: "{}", proxy.istio.io/config: "proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}"`},
			func(o *redirect.Options) bool { return o.RedirectDNS }},
	} {
		answer, why, err := decide(pod(t, tc.edits...), []netip.Addr{netip.MustParseAddr("10.96.0.10")})
		if err != nil || !answer.Redirect {
			t.Errorf("%s: %q, %v", name, why, err)
			continue
		}
		o, err := redirect.Parse(answer.Options)
		if err != nil || !tc.check(o) {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
}

func TestDecideRefusesAnnotationsThatAreWrong(t *testing.T) {
	for annotation, want := range map[string]string{
		`traffic.sidecar.istio.io/excludeOutboundPorts: "x"`:       "--istio-local-outbound-ports-exclude",
		`traffic.sidecar.istio.io/includeOutboundIPRanges: "10/8"`: "--istio-service-cidr",
		`sidecar.istio.io/interceptionMode: X`:                     "--istio-inbound-interception-mode",
		`proxy.istio.io/config: "["`:                               "proxy.istio.io/config",
	} {
		if _, _, err := decide(pod(t, `status: "{}"`, `status: "{}", `+annotation), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", annotation, err, want)
		}
	}
}

func FuzzAnnotations(f *testing.F) {
	f.Add("80,443", "22", "10.0.0.0/8,::/0", "eth0", "REDIRECT")
	f.Add("*", "", "1.2.3.4,fe80::1%eth0", "a b", "TPROXY")
	f.Fuzz(func(t *testing.T, included, excluded, ranges, interfaces, mode string) {
		p := pod(t)
		for key, value := range map[string]string{
			"traffic.sidecar.istio.io/includeInboundPorts": included, "traffic.sidecar.istio.io/excludeInboundPorts": excluded,
			"traffic.sidecar.istio.io/includeOutboundPorts": included, "traffic.sidecar.istio.io/excludeOutboundPorts": excluded,
			"traffic.sidecar.istio.io/includeOutboundIPRanges": ranges, "traffic.sidecar.istio.io/excludeOutboundIPRanges": ranges,
			"traffic.sidecar.istio.io/excludeInterfaces": interfaces, "istio.io/reroute-virtual-interfaces": interfaces,
			"sidecar.istio.io/interceptionMode": mode, "status.sidecar.istio.io/port": excluded,
		} {
			p.Metadata.Annotations[key] = value
		}
		answer, why, err := decide(p, nil)
		if err != nil {
			return
		}
		if !answer.Redirect {
			t.Fatalf("left alone: %s", why)
		}
		o, err := redirect.Parse(answer.Options)
		if err != nil {
			t.Fatal(err)
		}
		// A plan is one rule a line: what an annotation says becomes no rule of its own.
		plan := redirect.Plan(o)
		for _, c := range plan {
			if c != '\n' && c != '\t' && (c < ' ' || c > '~') {
				t.Fatalf("the plan has the character %q:\n%s", c, plan)
			}
		}
		if n := strings.Count(plan, "{"); n != strings.Count(plan, "}") {
			t.Errorf("the plan has %d sets that begin:\n%s", n, plan)
		}
	})
}
