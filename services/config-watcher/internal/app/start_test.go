package app

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// TestStartsWithoutCA starts with no certificate and gets one while it runs.
func TestStartsWithoutCA(t *testing.T) {
	f := newFixture(t)
	identity := f.ca.RootsOnly()
	r := f.start(f.options(), func(d *deps) { d.Identity = identity })
	testkit.Eventually(t, patience, func() error {
		code, body, err := r.Get("/readyz", "")
		if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(body, "own-certificate") ||
			strings.Contains(body, `"sources"`)) {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	})
	m, err := f.ca.NewSVID(contract.SystemNamespace, contract.ConfigWatcherAccount).Current()
	if err != nil {
		t.Fatal(err)
	}
	identity.Set(m)
	r.WaitReady()
	r.apply(shop)
}

// TestCAAway runs with a real certificate manager whose ca does not exist.
func TestCAAway(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.RootCertFile = f.ca.WriteRoot(f.dir)
	o.CATokenFile = f.issuer.TokenFile(contract.SystemNamespace, contract.ConfigWatcherAccount, contract.TokenAudience)
	o.StateDir = filepath.Join(f.dir, "state")
	r := f.start(o, func(d *deps) { d.Identity = nil })
	testkit.Eventually(t, patience, func() error {
		if snapshot, _ := r.revisions.Current(); snapshot == nil {
			return fmt.Errorf("no revision without the ca")
		}
		return nil
	})
}

func TestBrokenObjectAtStartStopsNothing(t *testing.T) {
	f := newFixture(t)
	dir := filepath.Join(f.dir, "mesh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "a.yaml"), []byte(shop+"---\n"+route(-5)))
	testkit.WriteFile(t, filepath.Join(dir, "b.yaml"), []byte("{{{"))
	o := f.options()
	o.ConfigDirs = []string{dir}
	r := f.start(o)
	sub := r.subscribe(nil, nil)
	sub.next()
	if sub.get("Service", "apps", "server.apps.svc.cluster.local") == nil {
		t.Errorf("held %v", sub.held)
	}
	metrics := r.body(t, "/metrics", "")
	for _, want := range []string{`fairlead_config_watcher_source_degraded{source="file"} 0`,
		`fairlead_config_watcher_source_problems{source="file"} 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestStoreWinsOverFiles(t *testing.T) {
	f := newFixture(t)
	dir := filepath.Join(f.dir, "mesh")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "a.yaml"), []byte(shop))
	mesh := filepath.Join(f.dir, "mesh-config.yaml")
	testkit.WriteFile(t, mesh, []byte("accessLogFile: /dev/stdout\n"))
	o := f.options()
	o.ConfigDirs, o.MeshConfigFile = []string{dir}, mesh
	r := f.start(o)
	sub := r.subscribe(nil, nil)
	sub.next()
	generation := func() string {
		ref := sub.get("VirtualService", "apps", "server").GetIstioConfig().GetSource()
		return ref.GetSource() + " " + ref.GetLocation()
	}
	if got := generation(); got != "file mesh/a.yaml:16" {
		t.Errorf("source %q", got)
	}
	if got := sub.get("MeshConfig", "", "default").GetMeshConfig().GetSource().GetSource(); got != "mesh-config-file" {
		t.Errorf("mesh configuration from %q", got)
	}
	key := &configv1.ObjectKey{Kind: "VirtualService", Namespace: "apps", Name: "server"}
	_, err := r.store().Delete(context.Background(), &configv1.DeleteRequest{Key: key})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "comes from source file (mesh/a.yaml:16)") {
		t.Errorf("deleting an object of a file: %v", err)
	}
	sub.until(r.apply(route(5)).Revision)
	if got := generation(); got != "memory " {
		t.Errorf("source %q", got)
	}
	if page := r.body(t, "/debug/sources", f.admin()); !strings.Contains(page, `"shadowed"`) {
		t.Errorf("the conflict is not told: %s", page)
	}
	deleted, err := r.store().Delete(context.Background(), &configv1.DeleteRequest{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	sub.until(deleted.Revision)
	if got := generation(); got != "file mesh/a.yaml:16" {
		t.Errorf("source %q", got)
	}
}

func TestOptions(t *testing.T) {
	f := newFixture(t)
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"good":                      {func(*Options) {}, ""},
		"no root":                   {func(o *Options) { o.RootCertFile = "" }, "--root-cert-file: is required"},
		"keys without issuer":       {func(o *Options) { o.Issuer = "" }, "--issuer: is required with --jwks-file"},
		"trust domain":              {func(o *Options) { o.TrustDomain = "Not One" }, "--trust-domain: "},
		"the same directory twice":  {func(o *Options) { o.ConfigDirs = []string{"/a", "/a/"} }, "--config-dir: /a/ is given twice"},
		"resync":                    {func(o *Options) { o.ResyncPeriod = time.Millisecond }, "--resync-period: 1ms is less than 1s"},
		"cluster":                   {func(o *Options) { o.ClusterID = "a/b" }, "--cluster-id: "},
		"keys without a pause":      {func(o *Options) { o.JWKSMinInterval = 0 }, "--jwks-min-interval: must be 1s to 10m"},
		"a host without discovery":  {func(o *Options) { o.MCS.Host = true }, "--mcs-host: needs --mcs-service-discovery"},
		"strict without a host":     {func(o *Options) { o.MCS.Discovery, o.MCS.ClusterLocal = true, true }, "--mcs-cluster-local: needs --mcs-host"},
		"exports nowhere":           {func(o *Options) { o.MCS.AutoExport = true }, "--mcs-auto-export: has no effect without --kubernetes"},
		"names looked up too often": {func(o *Options) { o.GatewayNamesEvery = time.Millisecond }, "--gateway-names-every: must be 1s or more"},
		"no keys":                   {func(o *Options) { o.MaxNamespaceJWKS = 0 }, "--max-namespace-jwks: must be 1 or more"},
		"addresses of keys":         {func(o *Options) { o.JWKSAllow = []string{"::1", "here"} }, "--jwks-allow-addresses: \"here\" is neither"},
		"a cluster":                 {kubernetesWith(func(*Options) {}), ""},
		"kubeconfig alone":          {func(o *Options) { o.Kubeconfig = "/a" }, "--kubeconfig: has no effect without --kubernetes"},
		"revision alone":            {func(o *Options) { o.IstioRevision = "a" }, "--revision: has no effect without --kubernetes"},
		"context alone": {kubernetesWith(func(o *Options) { o.Kubeconfig, o.KubeContext = "", "b" }),
			"--kube-context: needs --kubeconfig"},
		"no requests": {kubernetesWith(func(o *Options) { o.KubeAPIQPS = 0 }), "--kube-api-qps: "},
		"no burst":    {kubernetesWith(func(o *Options) { o.KubeAPIBurst = 0 }), "--kube-api-burst: "},
		"no revision": {kubernetesWith(func(o *Options) { o.IstioRevision = "a b" }), "--revision: \"a b\" is no value of a label"},
	} {
		o := f.options()
		c.change(&o)
		_, err := o.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// kubernetesWith are the flags of a cluster, changed.
func kubernetesWith(change func(*Options)) func(*Options) {
	return func(o *Options) {
		o.Kubernetes, o.Kubeconfig, o.KubeAPIQPS, o.KubeAPIBurst = true, "/a", 80, 160
		change(o)
	}
}

func TestAClusterThatCannotBeNamedEndsTheStart(t *testing.T) {
	w := newFixture(t)
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.WriteFile(t, broken, []byte(
		"{apiVersion: v1, kind: Config, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: "+
			"'https://127.0.0.1:1'}}]}"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, c := range map[string]struct {
		kubeconfig, context string
		want                []string
	}{
		"no file":    {"/does/not/exist", "", []string{"--kubeconfig /does/not/exist", "no such file"}},
		"no context": {broken, "b", []string{"--kubeconfig " + broken, `context "b" does not exist`}},
		"no Pod":     {"", "", []string{"does not run in a Pod", "--kubeconfig"}},
	} {
		o := w.options()
		kubernetesWith(func(o *Options) { o.Kubeconfig, o.KubeContext = c.kubeconfig, c.context })(&o)
		_, err := open(t.Context(), &o, w.deps(w.ca.NewSVID("istio-system", "config-watcher")))
		if process.ExitCode(err) != process.ExitUsage {
			t.Errorf("%s: exit code %d, %v", name, process.ExitCode(err), err)
		}
		for _, part := range append(c.want, "--kubernetes: ") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v lacks %q", name, err, part)
			}
		}
	}
}
