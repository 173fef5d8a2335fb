package install

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// rig is an API server behind a proxy that sees every request of the command under test.
type rig struct {
	*kubeapi.Server
	dynamic *dynamic.DynamicClient
	// manifests is the install package.
	manifests string
	proxy     *proxy
	// kubeconfig leads through the proxy.
	kubeconfig string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	s := kubeapi.Start(t, kubeapi.Options{Controllers: []string{"namespace-controller"}})
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Server: s, dynamic: client, manifests: writePackage(t, nil), proxy: newProxy(t, s.Config)}
	r.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"proxy": {Server: r.proxy.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"proxy": {Cluster: "proxy"}},
		CurrentContext: "proxy",
	}, r.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// proxy passes requests on as the administrator.
type proxy struct {
	*httptest.Server
	mu sync.Mutex
	// writes are the requests that change something, "PATCH /api/v1/namespaces/mesh".
	writes []string
	// onWrite, if it is set, is called with the number of each such request before it is passed on.
	onWrite func(n int)
	// version, if it is set, is what the API server says that it is.
	version string
	// log is what the only container has logged before it ended.
	log string
	// away makes the API server answer nothing; asked counts the requests meanwhile.
	away  bool
	asked int
}

func newProxy(t *testing.T, config *rest.Config) *proxy {
	t.Helper()
	to, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{}
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		version, log, away, call, n := p.version, p.log, p.away, (func(int))(nil), 0
		if away {
			p.asked++
		}
		if r.Method != http.MethodGet && r.URL.Query().Get("dryRun") == "" {
			p.writes = append(p.writes, r.Method+" "+r.URL.Path)
			call, n = p.onWrite, len(p.writes)
		}
		p.mu.Unlock()
		if away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if log != "" && r.URL.Path == "/api/v1/namespaces/mesh/pods/server-1/log" && r.URL.Query().Get("previous") == "true" &&
			r.URL.Query().Get("container") == "server" {
			_, _ = io.WriteString(w, log)
			return
		}
		if version != "" && r.URL.Path == "/version" {
			_, _ = io.WriteString(w, `{"major":"1","minor":"29","gitVersion":"`+version+`"}`)
			return
		}
		if call != nil {
			call(n)
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// set changes how the proxy answers.
func (p *proxy) set(change func(p *proxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// watch forgets the writes so far, and sets what is called for the next ones.
func (p *proxy) watch(onWrite func(n int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes, p.onWrite = nil, onWrite
}

func (p *proxy) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.writes...)
}

// command is `fairlead` with a kubeconfig.
func (r *rig) command(t *testing.T, kubeconfig string, a ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"), append(a, "--kubeconfig", kubeconfig)...) //nolint:gosec // under test
}

// run runs `fairlead` and returns what it printed and its exit code.
func (r *rig) run(t *testing.T, kubeconfig string, a ...string) (out, said string, code int) {
	t.Helper()
	answer := process.MustAsk(t, r.command(t, kubeconfig, a...))
	return answer.Out, answer.Said, answer.Code
}

// kubectl runs kubectl on a document, which must succeed.
func (r *rig) kubectl(t *testing.T, document string, args ...string) {
	t.Helper()
	program, err := kubeapi.Program("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "object.yaml")
	testkit.WriteFile(t, file, []byte(document))
	process.MustDo(t, exec.CommandContext(t.Context(), program, append(args, "--kubeconfig", r.Kubeconfig, "-f", file)...)) //nolint:gosec // Kubernetes' own
}

// does runs `fairlead` through the proxy; the exit code must be the expected one.
func (r *rig) does(t *testing.T, code int, a ...string) (out, said string) {
	t.Helper()
	out, said, got := r.run(t, r.kubeconfig, a...)
	if got != code {
		t.Fatalf("fairlead %v: exit code %d, expected %d\n%s%s", a, got, code, out, said)
	}
	return out, said
}

// install installs without waiting for Pods, which do not run here.
func (r *rig) install(t *testing.T, a ...string) (out, said string) {
	t.Helper()
	return r.does(t, 0, r.installing(a...)...)
}

// installing are the arguments of install.
func (r *rig) installing(a ...string) []string {
	return append([]string{"install", "-d", r.manifests, "-y", "--wait=false"}, a...)
}

// purge removes everything.
func (r *rig) purge(t *testing.T) {
	t.Helper()
	r.does(t, 0, "uninstall", "--purge", "--with-contents", "-y")
}

// theServers are kinds of objects that the API server makes by itself, and changes all the time.
var theServers = []string{"Event", "Lease", "APIService", "ComponentStatus", "Endpoints", "IPAddress", "ServiceCIDR"}

// snapshot returns the objects of the cluster by kind, namespace and name. What is
// not of interest, and what the API server makes by itself, is left out.
func (r *rig) snapshot(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	lists, err := r.Client(t).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*unstructured.Unstructured{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range list.APIResources {
			if !strings.Contains(kind.Verbs.String(), "list") || slices.Contains(theServers, kind.Kind) {
				continue
			}
			found, err := r.dynamic.Resource(gv.WithResource(kind.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				continue // a kind that has just gone
			}
			for i, u := range found.Items {
				if ns := u.GetNamespace(); ns != "kube-system" && (ns != "default" || u.GetName() != "kubernetes") &&
					!strings.HasPrefix(u.GetName(), "system:") {
					all[kind.Kind+" "+ns+"/"+u.GetName()] = &found.Items[i]
				}
			}
		}
	}
	return all
}

// changed names the objects that differ between two snapshots, by their resourceVersions; inventories are left out.
func changed(before, after map[string]*unstructured.Unstructured) []string {
	var out []string
	for id := range maps.Keys(union(before, after)) {
		a, b := before[id], after[id]
		if strings.HasPrefix(id, "Secret mesh/fairlead-installation-") {
			continue
		}
		switch {
		case a == nil:
			out = append(out, "+"+id)
		case b == nil:
			out = append(out, "-"+id)
		case a.GetResourceVersion() != b.GetResourceVersion():
			out = append(out, "~"+id)
		}
	}
	return sorted(out)
}

func union(a, b map[string]*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// contents are the objects of a snapshot without what differs between two installations of the same.
func contents(all map[string]*unstructured.Unstructured) map[string]any {
	out := map[string]any{}
	for id, u := range all {
		u = u.DeepCopy()
		for _, field := range []string{"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"} {
			unstructured.RemoveNestedField(u.Object, "metadata", field)
		}
		for _, field := range []string{"clusterIP", "clusterIPs"} {
			unstructured.RemoveNestedField(u.Object, "spec", field)
		}
		delete(u.Object, "status")
		if strings.HasPrefix(id, "Secret mesh/fairlead-installation-") {
			u.Object = nil
		}
		out[id] = u.Object
	}
	return out
}

func (r *rig) get(t *testing.T, gvr schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	u, err := r.dynamic.Resource(gvr).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// patch merges JSON into an object, as a manager.
func (r *rig) patch(t *testing.T, gvr schema.GroupVersionResource, namespace, name, manager, text string, sub ...string) {
	t.Helper()
	// Cleanups call it too, when the context of t has ended.
	ctx := context.WithoutCancel(t.Context())
	_, err := r.dynamic.Resource(gvr).Namespace(namespace).Patch(ctx, name, "application/merge-patch+json", []byte(text),
		metav1.PatchOptions{FieldManager: manager}, sub...)
	if err != nil {
		t.Fatal(err)
	}
}

func resource(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

var (
	configMaps  = resource("", "v1", "configmaps")
	deployments = resource("apps", "v1", "deployments")
	crds        = resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
	things      = resource("example.com", "v1", "things")
)

// says fails unless a text has all of some words.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in:\n%s", w, text)
		}
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, check)
}
