package meshconfig

import (
	"strings"
	"testing"
)

func TestMeshConfig(t *testing.T) {
	m, _, problems := Parse("mesh.yaml",
		[]byte("enableTracing: false\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\ndefaultConfig: {drainDuration: 1s}\nlocalityLbSetting: "+
			"{enabled: false}\n"))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	if m.EnableTracing || m.OutboundTrafficPolicy.Mode != 0 || m.LocalityLbSetting.Enabled.Value {
		t.Errorf("zero values that the user wrote are lost: %v", m)
	}
	if m.DefaultConfig.DrainDuration.Seconds != 1 || m.DefaultConfig.StatusPort != 15020 || m.ProxyListenPort != 15001 {
		t.Errorf("defaults are lost: %v", m)
	}
	_, _, problems = Parse("mesh.yaml", []byte("defaultConfig:\n  drainDuraton: 1s\n"))
	if got := problems.Error(); !strings.Contains(got,
		`mesh.yaml:2: MeshConfig: defaultConfig.drainDuraton: unknown field "drainDuraton"; did you mean "drainDuration"`) {
		t.Error(got)
	}
}

func TestMeshConfigValues(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"access log in text":           {`accessLogFormat: "%REQ(:PATH)% 100%%"`, ""},
		"access log with a lone %":     {`accessLogFormat: "100% %PATH%"`, "accessLogFormat: "},
		"access log in JSON":           {`{accessLogEncoding: JSON, accessLogFormat: '{"a": {"b": ["%DURATION%", 1, true]}}'}`, ""},
		"text where JSON is asked for": {`{accessLogEncoding: JSON, accessLogFormat: "%PATH%"}`, "accessLogFormat: "},
		"unknown command in JSON":      {`{accessLogEncoding: JSON, accessLogFormat: '{"a": ["%PATHS%"]}'}`, "accessLogFormat.a[0]: "},
		"access log's file":            {`accessLogFile: "/a\nb"`, "accessLogFile: "},
		"curves":                       {`tlsDefaults: {ecdhCurves: [X25519, P-512]}`, "tlsDefaults.ecdhCurves[1]: "},
		"ciphers":                      {`tlsDefaults: {cipherSuites: [AES]}`, "tlsDefaults.cipherSuites[0]: "},
		"ciphers of the mesh":          {`meshMTLS: {cipherSuites: [AES]}`, "meshMTLS.cipherSuites[0]: "},
		"no time for DNS":              {`dnsRefreshRate: 0s`, "dnsRefreshRate: "},
		"no time for detection":        {`protocolDetectionTimeout: 0s`, ""},
		"less than no time":            {`protocolDetectionTimeout: -1s`, "protocolDetectionTimeout: "},
		"no port":                      {`proxyHttpPort: 70000`, "proxyHttpPort: "},
		"authorizers": {`extensionProviders: [{name: a, envoyExtAuthzHttp: {service: a.b, port: 80, pathPrefix: /c, statusOnError: "503"}}, ` +
			`{name: b, envoyExtAuthzGrpc: {service: apps/a.b, port: 80, includeRequestBodyInCheck: {maxRequestBytes: 1}}}]`, ""},
		"authorizer at an address": {`extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: 10.0.0.1, port: 80}}]`, ""},
		"no authorizer":            {`extensionProviders: [{name: a}]`, "extensionProviders[0]: "},
		"authorizer of no service": {`extensionProviders: [{name: a, envoyExtAuthzHttp: {port: 80}}]`,
			"extensionProviders[0].envoyExtAuthzHttp.service: missing"},
		"authorizer of many services": {`extensionProviders: [{name: a, envoyExtAuthzHttp: {service: "*.b", port: 80}}]`,
			"extensionProviders[0].envoyExtAuthzHttp.service: "},
		"authorizer of no namespace": {`extensionProviders: [{name: a, envoyExtAuthzHttp: {service: /b, port: 80}}]`,
			"extensionProviders[0].envoyExtAuthzHttp.service: "},
		"authorizer of no port": {`extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: a.b}}]`,
			"extensionProviders[0].envoyExtAuthzGrpc.port: "},
		"status that Envoy lacks": {`extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: a.b, port: 80, statusOnError: "419"}}]`,
			"extensionProviders[0].envoyExtAuthzGrpc.statusOnError: "},
		"status that is no number": {`extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: a.b, port: 80, statusOnError: no}}]`,
			"extensionProviders[0].envoyExtAuthzGrpc.statusOnError: "},
		"relative prefix": {`extensionProviders: [{name: a, envoyExtAuthzHttp: {service: a.b, port: 80, pathPrefix: c}}]`,
			"extensionProviders[0].envoyExtAuthzHttp.pathPrefix: "},
		"body of no size": {`extensionProviders: [{name: a, envoyExtAuthzHttp: {service: a.b, port: 80, includeRequestBodyInCheck: {}}}]`,
			"extensionProviders[0].envoyExtAuthzHttp.includeRequestBodyInCheck.maxRequestBytes: "},
		"authorizer's header": {`extensionProviders: [{name: a, envoyExtAuthzHttp: {service: a.b, port: 80, ` +
			`includeAdditionalHeadersInCheck: {x: "a\nb"}}}]`, "extensionProviders[0].envoyExtAuthzHttp.includeAdditionalHeadersInCheck.x: "},
		"end of a header": {`defaultConfig: {proxyHeaders: {server: {value: "a\r\nb: c"}}}`,
			"defaultConfig.proxyHeaders.server.value: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, problems := Parse("", []byte(tc.yaml))
			if got := problems.Error(); got != "" && tc.want == "" ||
				!strings.HasPrefix(got, strings.TrimSuffix("MeshConfig: "+tc.want, "MeshConfig: ")) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// FuzzMeshConfig passes a bare mesh configuration through the parser, strict decoding and every check.
func FuzzMeshConfig(f *testing.F) {
	f.Add([]byte("enableTracing: false\ndefaultConfig: {drainDuration: 1s}\nextensionProviders: [{name: a, zipkin: {service: b}}]"))
	f.Add([]byte("outboundTrafficPolicy: {mode: REGISTRY_ONLY}\nlocalityLbSetting: {distribute: [{from: a, to: {b: 100}}]}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		m, _, problems := Parse("f", content)
		if (m == nil) == (len(problems) == 0) {
			t.Fatalf("config %v and problems %v", m, problems)
		}
	})
}
