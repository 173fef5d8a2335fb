package meshconfig

import (
	"strings"
	"testing"
)

// What no agent could start with is refused where the mesh says it, not in every Pod.
func TestDefaultConfigThatNoProxyStartsWith(t *testing.T) {
	for field, text := range map[string]string{
		"defaultConfig.extraStatTags[1]":                      `{extraStatTags: [zone, "a.b"]}`,
		"defaultConfig.proxyStatsMatcher.inclusionRegexps[0]": `{proxyStatsMatcher: {inclusionRegexps: ["("]}}`,
		"defaultConfig.statsdUdpAddress":                      `{statsdUdpAddress: statsd}`,
		"defaultConfig.discoveryAddress":                      `{discoveryAddress: foo}`,
		"defaultConfig.envoyMetricsServiceAddress":            `{envoyMetricsServiceAddress: "m:http"}`,
		"defaultConfig.envoyMetricsService.address":           `{envoyMetricsService: {address: ":1"}}`,
		"defaultConfig.envoyAccessLogService.address":         `{envoyAccessLogService: {address: "a:0"}}`,
		"defaultConfig.tracing.zipkin.address":                `{tracing: {zipkin: {address: zipkin}}}`,
		"defaultConfig.tracing.datadog.address":               `{tracing: {datadog: {address: "$(HOST_IP)"}}}`,
		"defaultConfig.caCertificatesPem[0]":                  `{caCertificatesPem: [x]}`,
		"defaultConfig.readinessProbe.periodSeconds":          `{readinessProbe: {periodSeconds: -1, httpGet: {port: 80}}}`,
		"defaultConfig.privateKeyProvider":                    `{privateKeyProvider: {cryptomb: {pollDelay: 1ms}}}`,
		"defaultConfig.customConfigFile":                      `{customConfigFile: /x}`,
		"defaultConfig.proxyBootstrapTemplatePath":            `{proxyBootstrapTemplatePath: /x}`,
	} {
		_, _, problems := Parse("mesh.yaml", []byte("defaultConfig: "+text))
		if len(problems) != 1 || problems[0].Field != field || problems[0].Remedy == "" {
			t.Errorf("%s: %v, want one problem of %s", text, problems, field)
		}
	}
	for _, text := range []string{
		`{statsdUdpAddress: "statsd:8125", extraStatTags: [a_b], statsCompression: false, tracingServiceName: CANONICAL_NAME_ONLY}`,
		`{envoyMetricsService: {address: "m:1"}, proxyStatsMatcher: {inclusionRegexps: ["a.*"]}}`,
	} {
		config, warnings, problems := Parse("mesh.yaml", []byte("defaultConfig: "+text))
		if config == nil || len(problems) > 0 || len(warnings) > 0 {
			t.Errorf("%s: %v, %v", text, warnings, problems)
		}
	}
	_, warnings, problems := Parse("mesh.yaml", []byte(`defaultConfig: {tracing: {zipkin: {address: "$(HOST_IP):9411"}}}`))
	if len(problems) > 0 || len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "listeners ask for no spans yet") {
		t.Errorf("tracing: %v, %v", warnings, problems)
	}
}
