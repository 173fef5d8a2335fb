package bootstrap

import (
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// fromJSON reads a ProxyConfig.
func fromJSON(t testing.TB, text string) *meshv1alpha1.ProxyConfig {
	t.Helper()
	pc := &meshv1alpha1.ProxyConfig{}
	if err := protojson.Unmarshal([]byte(text), pc); err != nil {
		t.Fatal(err)
	}
	return pc
}

func TestTelemetryErrorNamesTheFieldAndItsRemedy(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		annotations  map[string]string
		want         []string
	}{
		{"metrics service", `{"envoyMetricsService":{"address":"nowhere"}}`, nil, []string{`envoyMetricsService.address "nowhere"`, "host:port"}},
		{"access log service", `{"envoyAccessLogService":{"address":"a:b"}}`, nil, []string{`envoyAccessLogService.address "a:b"`}},
		{"statsd", `{"statsdUdpAddress":"statsd:0"}`, nil, []string{"statsdUdpAddress"}},
		{"zipkin", `{"tracing":{"zipkin":{}}}`, nil, []string{`tracing.zipkin.address ""`}},
		{"key pair", `{"tracing":{"zipkin":{"address":"z:1"},"tlsSettings":{"mode":"MUTUAL"}}}`, nil,
			[]string{"tracing.tlsSettings", "privateKey"}},
		{"Secret", `{"envoyMetricsService":{"address":"m:1","tlsSettings":{"mode":"SIMPLE","credentialName":"x"}}}`, nil,
			[]string{"envoyMetricsService.tlsSettings.credentialName", "caCertificates"}},
		{"regular expression", `{"proxyStatsMatcher":{"inclusionRegexps":["("]}}`, nil, []string{"inclusionRegexps", "RE2"}},
		{"tag", `{"extraStatTags":["a.b"]}`, nil, []string{`"a.b"`, "letters, digits and _"}},
		{"buckets", `{}`, map[string]string{bucketsAnnotation: "[1]"}, []string{bucketsAnnotation, `{"istio":[1,5,10]}`}},
		{"no bound", `{}`, map[string]string{bucketsAnnotation: `{"a":[]}`}, []string{bucketsAnnotation, `"a"`}},
		{"bound twice", `{}`, map[string]string{bucketsAnnotation: `{"a":[2,1,2]}`}, []string{bucketsAnnotation, `"a"`}},
		{"flush", `{}`, map[string]string{flushAnnotation: "often"}, []string{flushAnnotation, "as in 10s"}},
		{"eviction", `{}`, map[string]string{evictionAnnotation: "7s"}, []string{evictionAnnotation, "no multiple", "5s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := TelemetryFrom(fromJSON(t, tc.config), tc.annotations, nil, "")
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("does not say %q: %v", w, err)
				}
			}
		})
	}
}

func TestTracersThatEnvoyHasNot(t *testing.T) {
	for _, tracer := range []string{"lightstep", "stackdriver", "openCensusAgent"} {
		got, warnings, err := TelemetryFrom(fromJSON(t, `{"tracing":{"`+tracer+`":{}}}`), nil, nil, "")
		if err != nil || got.Tracer != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "use zipkin or datadog") {
			t.Errorf("%s: %v, %v, %v", tracer, got.Tracer, warnings, err)
		}
	}
}

func TestAddressOfTheMachine(t *testing.T) {
	for _, tc := range []struct{ host, address, want string }{
		{"192.0.2.1", "$(HOST_IP):9411", "192.0.2.1"},
		{"fd00::1", "$(HOST_IP):9411", "fd00::1"},
		{"fd00::1", "[$(HOST_IP)]:9411", "fd00::1"},
	} {
		got, _, err := TelemetryFrom(fromJSON(t, `{"tracing":{"zipkin":{"address":"`+tc.address+`"}}}`), nil, nil, tc.host)
		if err != nil || got.Tracer.Remote.Host != tc.want {
			t.Errorf("%s on %s: %v, %v", tc.address, tc.host, got.Tracer, err)
		}
	}
}

// FuzzTelemetry: whatever a ProxyConfig and annotations say, either an error says what is wrong or the bootstrap is
// valid by the rules of Envoy's API.
func FuzzTelemetry(f *testing.F) {
	f.Add(`{"tracing":{"zipkin":{"address":"$(HOST_IP):1"},"tlsSettings":{"mode":"SIMPLE"}},"extraStatTags":["a"]}`, "cluster,{pod_ip}",
		`{"a":[1,2]}`, "5s", "10s")
	f.Add(`{"envoyMetricsService":{"address":"m:1","tcpKeepalive":{"time":"1s"}},"statsdUdpAddress":"s:1","runtimeValues":{"a":""}}`, "", "",
		"", "")
	f.Fuzz(func(t *testing.T, config, list, bounds, flush, eviction string) {
		pc := &meshv1alpha1.ProxyConfig{}
		if protojson.Unmarshal([]byte(config), pc) != nil {
			return
		}
		in := inputs()["plain"]
		var err error
		in.Telemetry, _, err = TelemetryFrom(pc, map[string]string{
			prefixesAnnotation: list, suffixesAnnotation: list, tagsAnnotation: list, bucketsAnnotation: bounds, flushAnnotation: flush,
			evictionAnnotation: eviction,
		}, []string{"10.0.0.7"}, "192.0.2.1")
		if err != nil {
			return
		}
		in.RuntimeValues = pc.GetRuntimeValues()
		if _, err := Build(in); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	})
}

// TestRulesOfPoliciesAreLabels: the stats of a rule are one metric of its filter, with the rule as a label.
func TestRulesOfPoliciesAreLabels(t *testing.T) {
	var of *regexp.Regexp
	for _, tag := range tags {
		if tag.name == "rbac_policy" {
			of = regexp.MustCompile(tag.regex)
		}
	}
	for name, want := range map[string][2]string{
		"http.inbound_0.0.0.0_80.rbac.policy.ns[a]-policy[b.policy.c]-rule[0].denied": {
			"ns[a]-policy[b.policy.c]-rule[0]", "http.inbound_0.0.0.0_80.rbac.policy.denied"},
		"http.in.rbac.istio_dry_run_allow_.policy.ns[a]-policy[b]-rule[12].shadow_allowed": {
			"ns[a]-policy[b]-rule[12]", "http.in.rbac.istio_dry_run_allow_.policy.shadow_allowed"},
		"http.in.rbac.istio_ext_authz_my.policy.x_.policy.istio-ext-authz-my.policy.x-ns[a]-policy[b]-rule[0].shadow_denied": {
			"istio-ext-authz-my.policy.x-ns[a]-policy[b]-rule[0]", "http.in.rbac.istio_ext_authz_my.policy.x_.policy.shadow_denied"},
		"http.in.rbac.policy.istio-ext-authz-p-ns[a]-policy[b]-rule[0]-deny-due-to-bad-CUSTOM-action.denied": {
			"istio-ext-authz-p-ns[a]-policy[b]-rule[0]-deny-due-to-bad-CUSTOM-action", "http.in.rbac.policy.denied"},
		"http.inbound_0.0.0.0_80.rbac.denied": {},
	} {
		got := [2]string{}
		if m := of.FindStringSubmatch(name); m != nil {
			got = [2]string{m[2], strings.Replace(name, m[1], "", 1)}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
