package meshconfig

import "testing"

// What config sources cannot be is refused where the mesh says it.
func TestConfigSources(t *testing.T) {
	for field, text := range map[string]string{
		"configSources[0].address": `[{address: "ftp://a:1"}]`,
		"configSources[1].address": `[{address: "xds://a:1"}, {address: "xds://a:1"}]`,
		"configSources[2].address": `[{address: "k8s://"}, {address: "fs:///a"}, {address: "xds://a"}]`,
		"configSources[3].address": `[{address: "xds://a:1"}, {address: "xds://b:1"}, {address: "xds://c:1"}, {address: "fs://a/b"}]`,
		"configSources[4].address": `[{address: "xds://a:1"}, {address: "xds://b:1"}, {address: "xds://c:1"}, {address: "xds://d:1"},
			{address: "k8s://east"}]`,
		"configSources[0].subscribedResources[0]":     `[{address: "fs:///a", subscribedResources: [SERVICE_REGISTRY]}]`,
		"configSources[0].tlsSettings.credentialName": `[{address: "xds://a:1", tlsSettings: {mode: SIMPLE, credentialName: "configmap://a/b"}}]`,
		"configSources[1].tlsSettings.credentialName": `[{address: "k8s://"},
			{address: "xds://a:1", tlsSettings: {mode: SIMPLE, credentialName: a, caCertificates: /a}}]`,
		"configSources[2].tlsSettings.credentialName": `[{address: "k8s://"}, {address: "fs:///a"},
			{address: "xds://a:1", tlsSettings: {mode: ISTIO_MUTUAL, credentialName: a}}]`,
		"configSources[0].tlsSettings.caCrl":              `[{address: "xds://a:1", tlsSettings: {mode: ISTIO_MUTUAL, caCrl: /a}}]`,
		"configSources[0].tlsSettings.caCertificates":     `[{address: "xds://a:1", tlsSettings: {mode: ISTIO_MUTUAL, caCertificates: /a}}]`,
		"configSources[0].tlsSettings.sni":                `[{address: "xds://a:1", tlsSettings: {sni: a.b}}]`,
		"configSources[0].tlsSettings.subjectAltNames":    `[{address: "xds://a:1", tlsSettings: {mode: DISABLE, subjectAltNames: [a.b]}}]`,
		"configSources[0].tlsSettings.subjectAltNames[0]": `[{address: "xds://a:1", tlsSettings: {mode: SIMPLE, subjectAltNames: [""]}}]`,
		"configSources[1].tlsSettings.privateKey": `[{address: "k8s://"},
			{address: "xds://a:1", tlsSettings: {mode: SIMPLE, privateKey: /a}}]`,
		"configSources[1].tlsSettings.insecureSkipVerify": `[{address: "k8s://"},
			{address: "xds://a:1", tlsSettings: {mode: SIMPLE, credentialName: a, insecureSkipVerify: true}}]`,
		"configSources[0].tlsSettings.privateKey":         `[{address: "xds://a:1", tlsSettings: {mode: MUTUAL, clientCertificate: /a}}]`,
		"configSources[0].tlsSettings.clientCertificate":  `[{address: "xds://a:1", tlsSettings: {mode: MUTUAL, privateKey: /a}}]`,
		"configSources[0].tlsSettings.insecureSkipVerify": `[{address: "xds://a:1", tlsSettings: {mode: SIMPLE, insecureSkipVerify: true, caCertificates: /a}}]`,
	} {
		config, _, problems := Parse("mesh.yaml", []byte("configSources: "+text))
		if config != nil || len(problems) != 1 || problems[0].Field != field || problems[0].Remedy == "" {
			t.Errorf("%s: %v, want one problem of %s", text, problems, field)
		}
	}
	config, warnings, problems := Parse("mesh.yaml", []byte(`configSources:
- {address: "k8s://"}
- {address: "fs:///etc/istio/config"}
- {address: "xds://127.0.0.1:15010", subscribedResources: [SERVICE_REGISTRY]}
- {address: "xds://istiod.istio-system.svc:15012", tlsSettings: {mode: ISTIO_MUTUAL}}
- {address: "xds://[::1]:15012", tlsSettings: {mode: SIMPLE, caCertificates: "-----BEGIN CERTIFICATE-----", sni: a.b, subjectAltNames: [a.b]}}
- {address: "xds://c:1", tlsSettings: {mode: MUTUAL, clientCertificate: /a, privateKey: /b, caCertificates: /c, caCrl: /d}}
- {address: "xds://d:1", tlsSettings: {mode: MUTUAL, credentialName: registry.tls, subjectAltNames: [a.b]}}
`))
	if len(problems) > 0 || len(warnings) > 0 || len(config.GetConfigSources()) != 7 {
		t.Errorf("good ones: %v, %v", warnings, problems)
	}
}
