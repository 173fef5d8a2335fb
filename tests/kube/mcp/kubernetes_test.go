package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// TestConfigSourcesBesideAnAPIServer: a list without k8s:// leaves the API server's objects of Istio's kinds out, and
// its Services count all the same, as in Istio; with k8s:// both count, the API server's first. The server's
// certificate is verified by the Secret of credentialName, whose exchange counts from the next connection on.
func TestConfigSourcesBesideAnAPIServer(t *testing.T) {
	r := newRig(t)
	r.startWatcher() // the MCP server
	text := func(namespace, name string, port int) []byte {
		return fmt.Appendf(nil, `{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {"name": %q, "namespace": %q},
			"spec": {"hosts": ["%[1]s.example.com"], "resolution": "DNS", "ports": [{"number": %[3]d, "name": "http", "protocol": "HTTP"}]}}`,
			name, namespace, port)
	}
	entry := kindOf("ServiceEntry")
	testkit.NoError(t, r.write(entry, west, "of-kubernetes", text(west, "of-kubernetes", 80)))
	testkit.NoError(t, r.write(entry, east, "of-mcp", text(east, "of-mcp", 80)))
	// One that both have: the server's is older.
	_, err := r.store.Apply(t.Context(), &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "o", Content: text(west, "both", 81)}}})
	testkit.NoError(t, err)
	testkit.NoError(t, r.write(entry, west, "both", text(west, "both", 82)))
	r.service("web", false, corev1.ServicePort{Name: "http", Port: 80})
	secrets := r.api.Client(t).CoreV1().Secrets(system)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mcp", Namespace: system}, Data: map[string][]byte{"ca.crt": r.ca.RootPEM}}
	_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	testkit.NoError(t, err)

	dir := filepath.Join(r.dir, "client")
	mesh := filepath.Join(dir, "mesh.yaml")
	configure := func(sources string) {
		testkit.WriteFile(t, mesh, fmt.Appendf(nil, "rootNamespace: %s\nconfigSources: [%s]\n", system, sources))
	}
	xds := fmt.Sprintf(`{address: "xds://%s", tlsSettings: {mode: SIMPLE, sni: %s, credentialName: mcp}}`, r.mcp, name)
	r.ca.WriteSVID(filepath.Join(dir, "svid", svid.CacheFile), system, "config-watcher")
	configure("")
	server := *r
	server.grpc, server.ops = testkit.FreeAddress(t).String(), testkit.FreeAddress(t).String()
	process.Run(t, process.Program{Name: "client", Path: binaries.Built(t, "config-watcher"), Args: []string{
		"--grpc-address", server.grpc, "--ops-address", server.ops, "--trust-domain", testkit.TrustDomain,
		"--root-cert-file", r.ca.WriteRoot(dir), "--state-dir", dir, "--ca-address", "127.0.0.1:1", "--mesh-config-file", mesh,
		"--kubernetes", "--kubeconfig", r.api.Kubeconfig,
	}})
	testkit.Eventually(t, testkit.Patience, func() error {
		return probe.Ready(t.Context(), probe.Client(nil), "http://"+server.ops+"/readyz")
	})
	client := server.connect()
	has := func(want string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			var got []string
			for _, kind := range []string{"ServiceEntry", "Service"} {
				list, err := client.List(t.Context(), &configv1.ListRequest{Kind: kind, InForce: true})
				if err != nil {
					return err
				}
				for _, o := range list.Objects {
					var m struct {
						Spec struct{ Ports []struct{ Number int } }
					}
					if err := json.Unmarshal(o.Manifest, &m); err != nil {
						return err
					}
					if o.Key.Namespace == west || o.Key.Namespace == east {
						source, _, _ := strings.Cut(o.Source, "/")
						got = append(got, fmt.Sprintf("%s:%s:%d", o.Key.Name, source, m.Spec.Ports[0].Number))
					}
				}
			}
			if text := strings.Join(got, " "); text != want {
				return errors.New("got " + text + ", want " + want)
			}
			return nil
		})
	}
	const kubernetes, service = "both:kubernetes:82 of-kubernetes:kubernetes:80", " web:kubernetes:0"
	has(kubernetes + service)
	configure(xds)
	has("of-mcp:mcp:80 both:mcp:81" + service)
	configure(xds + `, {address: "k8s://"}`)
	has("of-mcp:mcp:80 " + kubernetes + service)
	// Whoever changes the Secret changes whom config-watcher believes: with other settings the connection is made anew.
	secret.Data["ca.crt"] = testkit.NewCA(t, testkit.TrustDomain, r.ca.Cert.NotBefore).RootPEM
	_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	testkit.NoError(t, err)
	r.watcher.Kill()
	r.startWatcher()
	testkit.Eventually(t, testkit.Patience, func() error {
		list, err := client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
		if err != nil {
			return err
		}
		if text := fmt.Sprint(list); !strings.Contains(text, "unknown authority") {
			return errors.New("it is believed: " + text)
		}
		return nil
	})
	has("of-mcp:mcp:80 " + kubernetes + service)
	// Without the list everything is as before.
	configure("")
	has(kubernetes + service)
}
