// Package mcp has an istiod and a config-watcher read each other's configuration by MCP over xDS. istiod is Istio's
// own, on etcd and kube-apiserver.
package mcp

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }

const (
	system = "istio-system"
	// west is the namespace of the API server's objects, east of config-watcher's.
	west, east = "west", "east"
	// name is that of config-watcher's certificate, by which an istiod verifies it.
	name = "config-watcher.istio-system.svc"
)

// kind is one whose objects travel.
type kind struct {
	schema.GroupVersionResource
	kind string
	spec func() proto.Message
}

func of[T any, P interface {
	*T
	proto.Message
}](group, version, plural, name string) kind {
	return kind{schema.GroupVersionResource{Group: group, Version: version, Resource: plural}, name, func() proto.Message { return P(new(T)) }}
}

// kinds are those that istiod has but WasmPlugin, of which it makes TrafficExtensions of its own.
var kinds = []kind{
	of[networking.VirtualService]("networking.istio.io", "v1", "virtualservices", "VirtualService"),
	of[networking.DestinationRule]("networking.istio.io", "v1", "destinationrules", "DestinationRule"),
	of[networking.Gateway]("networking.istio.io", "v1", "gateways", "Gateway"),
	of[networking.Sidecar]("networking.istio.io", "v1", "sidecars", "Sidecar"),
	of[networking.ServiceEntry]("networking.istio.io", "v1", "serviceentries", "ServiceEntry"),
	of[networking.WorkloadEntry]("networking.istio.io", "v1", "workloadentries", "WorkloadEntry"),
	of[networking.WorkloadGroup]("networking.istio.io", "v1", "workloadgroups", "WorkloadGroup"),
	of[networking.EnvoyFilter]("networking.istio.io", "v1alpha3", "envoyfilters", "EnvoyFilter"),
	of[networkingv1beta1.ProxyConfig]("networking.istio.io", "v1beta1", "proxyconfigs", "ProxyConfig"),
	of[security.PeerAuthentication]("security.istio.io", "v1", "peerauthentications", "PeerAuthentication"),
	of[security.RequestAuthentication]("security.istio.io", "v1", "requestauthentications", "RequestAuthentication"),
	of[security.AuthorizationPolicy]("security.istio.io", "v1", "authorizationpolicies", "AuthorizationPolicy"),
	of[telemetry.Telemetry]("telemetry.istio.io", "v1", "telemetries", "Telemetry"),
	of[extensions.TrafficExtension]("extensions.istio.io", "v1alpha1", "trafficextensions", "TrafficExtension"),
}

func kindOf(name string) *kind {
	for i := range kinds {
		if kinds[i].kind == name {
			return &kinds[i]
		}
	}
	return nil
}

// rig is both control planes and the API server.
type rig struct {
	t       *testing.T
	dir     string
	ca      *testkit.CA
	api     *kubeapi.Server
	objects dynamic.Interface
	// grpc, mcp and ops are config-watcher's, secure and http istiod's.
	grpc, mcp, ops, secure, http string
	mesh                         string
	nudges                       int
	watcher, istiod              *process.Process
	store                        configv1.ConfigStoreServiceClient
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Getenv("ISTIO_BIN") == "" {
		t.Skip("ISTIO_BIN names no directory with Istio's pilot-discovery: run `make mcp`")
	}
	address := func() string { return testkit.FreeAddress(t).String() }
	r := &rig{t: t, dir: t.TempDir(), ca: testkit.PKI(t), api: kubeapi.Start(t, kubeapi.Options{}), grpc: address(), mcp: address(),
		ops: address(), secure: address(), http: address()}
	r.api.ApplyCRDs(t)
	for _, n := range []string{system, west} {
		_, err := r.api.Client(t).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}},
			metav1.CreateOptions{})
		testkit.NoError(t, err)
	}
	var err error
	r.objects, err = dynamic.NewForConfig(r.api.Config)
	testkit.NoError(t, err)
	return r
}

// startWatcher starts a config-watcher without an API server, which serves what is written by its API.
func (r *rig) startWatcher() {
	r.t.Helper()
	state := filepath.Join(r.dir, "state")
	r.ca.WriteSVID(filepath.Join(state, "svid", svid.CacheFile), system, "config-watcher",
		func(c *x509.Certificate) { c.DNSNames = []string{name} })
	r.mesh = filepath.Join(r.dir, "mesh.yaml")
	testkit.WriteFile(r.t, r.mesh, []byte("rootNamespace: "+system+"\n"))
	r.runWatcher()
}

// runWatcher starts a config-watcher, or starts it again after it was stopped.
func (r *rig) runWatcher() {
	r.t.Helper()
	r.watcher = process.Run(r.t, process.Program{Name: "config-watcher", Path: binaries.Built(r.t, "config-watcher"), Args: []string{
		"--grpc-address", r.grpc, "--ops-address", r.ops, "--trust-domain", testkit.TrustDomain, "--root-cert-file", r.ca.WriteRoot(r.dir),
		"--state-dir", filepath.Join(r.dir, "state"), "--ca-address", "127.0.0.1:1", "--mesh-config-file", r.mesh, "--mcp-address", r.mcp,
		"--mcp-allow-addresses", "127.0.0.0/8",
	}})
	testkit.Eventually(r.t, testkit.Patience, func() error { return probe.Ready(r.t.Context(), probe.Client(nil), "http://"+r.ops+"/readyz") })
	r.store = r.connect()
}

// connect makes a client of the configuration API at r.grpc.
func (r *rig) connect() configv1.ConfigStoreServiceClient {
	r.t.Helper()
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: r.grpc, TLS: tlsconf.Client(r.ca.NewSVID(system, "fairlead-admin"), r.ca.ID(system, "config-watcher")), MaxRecvBytes: 64 << 20,
	})
	testkit.NoError(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	return configv1.NewConfigStoreServiceClient(conn)
}

// follow has config-watcher read istiod, by mutual TLS of the mesh. istiod lets in whoever has an identity of its
// namespace.
func (r *rig) follow(settings ...string) {
	r.t.Helper()
	testkit.WriteFile(r.t, r.mesh, fmt.Appendf(nil,
		"rootNamespace: %s\nconfigSources: [{address: \"xds://%s\", tlsSettings: {mode: ISTIO_MUTUAL}%s}]\n", system, r.secure,
		strings.Join(settings, "")))
}

// startIstiod starts an istiod that reads the API server and config-watcher, and waits until it has read both.
func (r *rig) startIstiod() {
	r.t.Helper()
	r.startIstiodOf(map[string]any{"address": "k8s://"}, map[string]any{"address": "xds://" + r.mcp,
		"tlsSettings": map[string]any{"mode": "SIMPLE", "sni": name, "caCertificates": string(r.ca.RootPEM)}})
}

// startIstiodOf starts an istiod that reads the given configSources, and waits until it has read them.
func (r *rig) startIstiodOf(sources ...any) {
	r.t.Helper()
	cert, key := filepath.Join(r.dir, "istiod.crt"), filepath.Join(r.dir, "istiod.key")
	both := filepath.Join(r.dir, "istiod.pem")
	r.ca.WriteSVID(both, system, "istiod")
	raw, err := os.ReadFile(both)
	testkit.NoError(r.t, err)
	block, rest := pem.Decode(raw)
	testkit.WriteFile(r.t, key, pem.EncodeToMemory(block))
	testkit.WriteFile(r.t, cert, rest)
	mesh := filepath.Join(r.dir, "istiod.yaml")
	config, err := json.Marshal(map[string]any{"rootNamespace": system, "configSources": sources})
	testkit.NoError(r.t, err)
	testkit.WriteFile(r.t, mesh, config)
	other := func() string { return testkit.FreeAddress(r.t).String() }
	r.istiod = process.Run(r.t, process.Program{
		Name: "istiod", Path: filepath.Join(os.Getenv("ISTIO_BIN"), "pilot-discovery"),
		Args: []string{
			"discovery", "--kubeconfig", r.api.Kubeconfig, "--meshConfig", mesh, "--httpAddr", r.http, "--grpcAddr", other(),
			"--secureGRPCAddr", r.secure, "--monitoringAddr", other(), "--httpsAddr", "", "--ctrlz_port", "0", "--tlsCertFile", cert,
			"--tlsKeyFile", key, "--caCertFile", filepath.Join(r.dir, "root-cert.pem"), "--log_output_level", "default:info,ads:info",
		},
		Env: []string{
			"POD_NAMESPACE=" + system, "POD_NAME=istiod", "SERVICE_ACCOUNT=istiod", "CLUSTER_ID=Kubernetes", "ENABLE_CA_SERVER=false",
			"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=", "PILOT_ENABLE_GATEWAY_API=false",
			"PILOT_ENABLE_ANALYSIS=false",
		},
		Change: func(cmd *exec.Cmd) error { cmd.Dir = r.dir; return nil },
	})
	testkit.NoError(r.t, r.istiod.Until(r.t.Context(), testkit.Patience, func() error {
		return probe.Ready(r.t.Context(), probe.Client(nil), "http://"+r.http+"/ready")
	}))
}

// set are objects by kind, namespace and name: what they say, in a form that can be compared.
type set map[string]string

// difference says what two sets do not have in common; "" if they are equal.
func (s set) difference(want set) string {
	var out []string
	for k, v := range want {
		if got, ok := s[k]; !ok {
			out = append(out, k+" is missing")
		} else if got != v {
			out = append(out, fmt.Sprintf("%s is\n%s\nwant\n%s", k, got, v))
		}
	}
	for k := range s {
		if _, ok := want[k]; !ok {
			out = append(out, k+" should not be there")
		}
	}
	return strings.Join(out, "\n")
}

// add adds a manifest; objects of other kinds and namespaces play no part.
func (s set) add(manifest []byte) error {
	var m struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name, Namespace     string
			Labels, Annotations map[string]string
		}
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return err
	}
	k := kindOf(m.Kind)
	if k == nil || m.Metadata.Namespace != west && m.Metadata.Namespace != east {
		return nil
	}
	spec := k.spec()
	if len(m.Spec) > 0 {
		if err := json.Unmarshal(m.Spec, spec); err != nil {
			return fmt.Errorf("%s %s/%s: %w", m.Kind, m.Metadata.Namespace, m.Metadata.Name, err)
		}
	}
	text, err := canonical(spec)
	if err != nil {
		return err
	}
	// A memory store of istiod's notes the version of an object beside what the user has written.
	for a := range m.Metadata.Annotations {
		if strings.HasPrefix(a, "internal.istio.io/") || a == "ResourceVersion" || a == corev1.LastAppliedConfigAnnotation {
			delete(m.Metadata.Annotations, a)
		}
	}
	s[m.Kind+" "+m.Metadata.Namespace+"/"+m.Metadata.Name] = fmt.Sprintf("%v %v %s", m.Metadata.Labels, m.Metadata.Annotations, text)
	return nil
}

// canonical writes a message in one way.
func canonical(spec proto.Message) (string, error) {
	js, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = json.Compact(&b, js) // protobuf varies spaces on purpose
	return short.Replace(b.String()), err
}

// short undoes what istiod does to objects in its memory: it completes the names of hosts and gateways, and sends them
// so.
var short = strings.NewReplacer(`.west.svc.cluster.local"`, `"`, `.east.svc.cluster.local"`, `"`, `.west"`, `"`, `.east"`, `"`,
	`"west/gw"`, `"gw"`, `"east/gw"`, `"gw"`)

// ofIstiod is what istiod has, of all its sources.
func (r *rig) ofIstiod(ctx context.Context) (set, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.http+"/debug/configz", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // a test
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%w: %.200s", err, raw)
	}
	out := set{}
	for _, m := range list {
		if err := out.add(m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ofWatcher is what counts at config-watcher, of all its sources.
func (r *rig) ofWatcher(ctx context.Context) (set, error) {
	list, err := r.store.List(ctx, &configv1.ListRequest{InForce: true})
	if err != nil {
		return nil, err
	}
	out := set{}
	for _, o := range list.Objects {
		if err := out.add(o.Manifest); err != nil {
			return nil, err
		}
	}
	return out, nil
}
