package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"runtime"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/kube/podconn"
	"fairlead.dev/services/installer/internal/meshclient"
)

// Addon is a program beside the mesh that `fairlead dashboard` forwards to.
type Addon struct {
	// selector of its Pods, port and the path of its page, as in the samples that Istio publishes.
	Selector, path string
	port           int
}

// Addons are known by their names.
var Addons = map[string]Addon{
	"prometheus": {"app.kubernetes.io/name=prometheus", "", 9090}, "grafana": {"app.kubernetes.io/name=grafana", "", 3000},
	"kiali":  {"app=kiali", "/kiali", 20001},
	"jaeger": {"app=jaeger", "", 16686}, "zipkin": {"app=zipkin", "/zipkin", 9411}, "skywalking": {"app=skywalking-ui", "", 8080},
}

// Programs are the services whose pages `fairlead dashboard` shows; controlz and istiod-debug are
// istioctl's names.
var Programs = map[string]string{
	controlplane.ConfigWatcher: controlplane.ConfigWatcher, controlplane.XDSServer: controlplane.XDSServer, controlplane.CA: controlplane.CA,
	"controlz": controlplane.XDSServer, "istiod-debug": controlplane.XDSServer,
}

// Forward forwards a port to a program's Pod until ctx ends.
func (v View) Forward(ctx context.Context, mesh *meshclient.Mesh, name, namespace string, a Addon) error {
	controlPlane, err := mesh.ControlPlane(ctx)
	if err != nil {
		return err
	}
	if controlPlane == nil {
		return fmt.Errorf("`fairlead up` runs no %s: its services have metrics at http://<operations port>/metrics; name a cluster that runs "+
			"it with --kubeconfig or --context", name)
	}
	namespace = cmp.Or(namespace, controlPlane.Namespace)
	api, err := mesh.Cluster.API()
	if err != nil {
		return err
	}
	pods, err := api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: a.Selector, Limit: kube.Page})
	if err != nil {
		return kube.Explain(err)
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil })
	if i < 0 {
		return fmt.Errorf("no Pod of %s (%s) runs in namespace %s; install it, or name its namespace with -n and its labels with -l", name,
			a.Selector, namespace)
	}
	pod := controlPlane.Pod(namespace, pods.Items[i].Name)
	dial := func(ctx context.Context) (net.Conn, error) { return pod.Dial(ctx, a.port) }
	first, err := dial(ctx) // what is wrong is told before a browser opens
	if err != nil {
		return err
	}
	_ = first.Close()
	forward, err := podconn.Listen(v.Listen, dial, toldOnce(v.Diagnostics))
	if err != nil {
		return err
	}
	page := url.URL{Scheme: "http", Host: shownAddress(v.Listen, forward.Address()), Path: a.path}
	v.announce(ctx, page.String(), page.String())
	return forward.Serve(ctx)
}

// toldOnce prints each text once.
func toldOnce(out io.Writer) func(error) {
	var mu sync.Mutex
	last := ""
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if text := err.Error(); text != last {
			last = text
			fmt.Fprintln(out, text)
		}
	}
}

// shownAddress is the address for a URL: the host that was asked for, with the port that was bound.
func shownAddress(asked, bound string) string {
	host, _, err := net.SplitHostPort(asked)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	_, port, err := net.SplitHostPort(bound)
	if err != nil {
		return bound
	}
	return net.JoinHostPort(host, port)
}

// announce prints the URL and opens a browser with another one, which other users of the machine may see.
func (v View) announce(ctx context.Context, printed, page string) {
	fmt.Fprintln(v.Out, printed)
	if !v.Browser {
		return
	}
	opener := map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if opener == nil {
		opener = []string{"xdg-open"}
	}
	if err := exec.CommandContext(ctx, opener[0], append(opener[1:], page)...).Start(); err != nil { //nolint:gosec // a URL of our own
		fmt.Fprintln(v.Diagnostics, "no browser was opened: open the address yourself; Ctrl-C ends it")
	}
}
