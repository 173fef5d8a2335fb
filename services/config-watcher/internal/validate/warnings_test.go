package validate

import (
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

func TestWarnings(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, at string }{
		"a field of MeshConfig": {`apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "extensionProviders: [{name: a, prometheus: {}}, {name: b, envoyExtAuthzGrpc: {service: b, port: 80}}]"}
`, "ConfigMap istio-system/istio: data.mesh.extensionProviders[0].prometheus: has no effect: "},
		"a field below a message": {`apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "defaultConfig: {tracing: {sampling: 10}, concurrency: 2}"}
`, "ConfigMap istio-system/istio: data.mesh.defaultConfig.tracing: has no effect: "},
		"networks": {`apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "", meshNetworks: "networks: {n1: {gateways: [{address: 192.0.2.1, port: 1, locality: a}]}}"}
`, "ConfigMap istio-system/istio: data.meshNetworks.networks.n1.gateways[0].locality: has no effect: "},
		"a field of a resource": {`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: apps}
spec: {selector: {a: b}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.com], defaultEndpoint: "127.0.0.1:80"}]}
`, "Gateway apps/g: spec.servers[0].defaultEndpoint: has no effect: "},
		"a certificate that a gateway does not show": {`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: apps}
spec: {servers: [{port: {number: 443, name: tls, protocol: TLS}, hosts: [a.com], tls: {mode: PASSTHROUGH, credentialName: c}}]}
`, "Gateway apps/g: spec.servers[0].tls.credentialName: has no effect: mode PASSTHROUGH terminates no TLS"},
		"a certificate for nobody in particular": {`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: apps}
spec: {servers: [{port: {number: 443, name: tls, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE, credentialName: c}}]}
`, "Gateway apps/g: spec.servers[0].tls: credentials are given to workloads that a Gateway with a selector selects"},
		"a certificate that a client does not show": {`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: d, namespace: apps}
spec: {host: a, trafficPolicy: {tls: {mode: SIMPLE, clientCertificate: /a, privateKey: /b}}}
`, "DestinationRule apps/d: spec.trafficPolicy.tls.clientCertificate: has no effect: "},
		"TLS settings without a mode": {`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: d, namespace: apps}
spec: {host: a, trafficPolicy: {tls: {sni: a.com}}}
`, "DestinationRule apps/d: spec.trafficPolicy.tls: has no effect: mode DISABLE"},
		"a whole kind": {`apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: t, namespace: apps}
spec: {accessLogging: [{disabled: true}]}
`, "Telemetry apps/t: spec: has no effect: "},
		"an annotation, also of what MeshConfig may not have": {`apiVersion: v1
kind: Pod
metadata:
  name: p
  namespace: apps
  annotations: {proxy.istio.io/config: "privateKeyProvider: {cryptomb: {pollDelay: 1s}}\nconcurrency: 2"}
spec: {containers: []}
`, `Pod apps/p: metadata.annotations["proxy.istio.io/config"].privateKeyProvider: has no effect: `},
	} {
		t.Run(name, func(t *testing.T) {
			docs, problems := manifest.Parse("f.yaml", []byte(tc.yaml))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			o, err := Document(docs[0])
			if err != nil {
				t.Fatal(err)
			}
			if len(o.Warnings) != 1 || !strings.Contains(o.Warnings[0].Error(), ": "+tc.at) ||
				!strings.HasPrefix(o.Warnings[0].Location, "f.yaml:") || o.Warnings[0].Remedy == "" {
				t.Errorf("warnings %q, want one %q", o.Warnings.Error(), tc.at)
			}
		})
	}
}
