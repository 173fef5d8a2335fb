// Package controlplane finds the replicas of Fairlead's services in a cluster and connects to them: Find lists the Pods
// of config-watcher, xds-server, ca and injector, and Replica.Ops and Replica.API are clients of their ports, through
// the API server (package podconn). Commands of cli call it.
//
// What counts as a replica comes from the control plane's namespace alone: the config-watchers are Pods there, and the
// namespaces of the other services are those that config-watcher's own flags name. A Pod of another namespace that only
// looks like one is never asked, because it would be sent an administrator's token.
package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/kube/podconn"
	"fairlead.dev/services/installer/internal/opsclient"
)

// Programs of a control plane, which are also the names of their containers.
const (
	ConfigWatcher = "config-watcher"
	XDSServer     = "xds-server"
	CA            = "ca"
	Injector      = "injector"
)

// candidates selects the Pods among which replicas are looked for; fairlead is the one of the compact profile.
const candidates = "app in (config-watcher, xds-server, ca, injector, fairlead)"

// maxReplicas bounds the replicas that are asked, and maxCandidates the Pods that are looked at: those of a Deployment
// that were evicted or have ended stay in the namespace.
const (
	maxReplicas   = 64
	maxCandidates = 20 * kube.Page
)

// tokenSeconds is how long the tokens of commands are valid: the shortest time that Kubernetes issues them for.
const tokenSeconds = 600

// ErrNone means that there is no control plane in the namespace.
var ErrNone = errors.New("no control plane")

// Replica is one running service in a Pod.
type Replica struct {
	Program, Namespace, Pod, Node, Revision, Image string
	// Ready is false for a Pod that runs and is not ready.
	Ready bool
	// account is the service account of the identity, in the Pod's namespace.
	account           string
	trustDomain       string
	grpcPort, opsPort int
	args              []string
	mesh              *Mesh
	conn              *podconn.Pod
}

// Name is "<pod>" in the control plane's namespace, else "<pod>.<namespace>".
func (r *Replica) Name() string {
	if r.Namespace == r.mesh.Namespace {
		return r.Pod
	}
	return r.Pod + "." + r.Namespace
}

// OpsPort is the port of /metrics, /readyz and /debug.
func (r *Replica) OpsPort() int { return r.opsPort }

// Mesh is the control plane of a cluster. It is safe for concurrent use. Close ends its connections.
type Mesh struct {
	Namespace string
	// Replicas sorted by program, namespace and name.
	Replicas []*Replica

	config *rest.Config
	api    kube.API

	mu     sync.Mutex
	tokens map[string]issued
	pods   []*podconn.Pod
}

type issued struct {
	token string
	until time.Time
}

// Find lists the replicas of the control plane in a namespace. revision chooses those of one revision; empty means all.
// Without any, the error is ErrNone.
func Find(ctx context.Context, config *rest.Config, api kube.API, namespace, revision string) (*Mesh, error) {
	m := &Mesh{Namespace: namespace, config: config, api: api, tokens: map[string]issued{}}
	if err := m.list(ctx, namespace, revision, ConfigWatcher, XDSServer, CA, Injector); err != nil {
		return nil, err
	}
	for _, r := range m.Of(ConfigWatcher) {
		for flag, program := range map[string]string{"xds-server-identity": XDSServer, "ca-identity": CA} {
			elsewhere, _, ok := strings.Cut(argument(r.args, flag), "/")
			if !ok || elsewhere == namespace || slices.ContainsFunc(m.Of(program), func(r *Replica) bool { return r.Namespace == elsewhere }) {
				continue
			}
			if err := m.list(ctx, elsewhere, revision, program); err != nil {
				return nil, err
			}
		}
	}
	if len(m.Replicas) == 0 {
		of := ""
		if revision != "" {
			of = " of revision " + revision
		}
		return nil, fmt.Errorf("%w%s runs in namespace %s; name its namespace with --istioNamespace, or install one with `fairlead install`",
			ErrNone, of, namespace)
	}
	slices.SortFunc(m.Replicas, func(a, b *Replica) int {
		return cmp.Or(strings.Compare(a.Program, b.Program), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod))
	})
	return m, nil
}

// list adds the replicas of programs in a namespace.
func (m *Mesh) list(ctx context.Context, namespace, revision string, programs ...string) error {
	seen := 0
	return kube.EachPod(ctx, m.api, namespace, candidates, func(pod *corev1.Pod) error {
		if seen++; seen > maxCandidates {
			return fmt.Errorf("namespace %s has more than %d Pods with the label app of a control plane; delete those that have ended", namespace,
				maxCandidates)
		}
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil || !ofRevision(pod.Labels[contract.RevisionLabel], revision) {
			return nil
		}
		conn := podconn.New(m.config, m.api, namespace, pod.Name)
		m.pods = append(m.pods, conn)
		for _, c := range pod.Spec.Containers {
			if r := m.replica(pod, c, conn); r != nil && slices.Contains(programs, r.Program) && len(m.Replicas) < maxReplicas {
				m.Replicas = append(m.Replicas, r)
			}
		}
		return nil
	})
}

// ofRevision compares the label of a Pod with a revision that is wanted. The default revision has no label.
func ofRevision(label, wanted string) bool {
	return wanted == "" || cmp.Or(label, "default") == wanted
}

// replica reads a container's flags; nil if it is none of the control plane's.
func (m *Mesh) replica(pod *corev1.Pod, c corev1.Container, conn *podconn.Pod) *Replica {
	c.Args = resolved(pod, &c)
	r := &Replica{
		Program: c.Name, Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, Revision: cmp.Or(pod.Labels[contract.RevisionLabel], "default"),
		Image:   c.Image,
		account: pod.Spec.ServiceAccountName, trustDomain: cmp.Or(argument(c.Args, "trust-domain"), "cluster.local"), args: c.Args, mesh: m,
		conn: conn,
	}
	grpc := map[string]string{ConfigWatcher: "grpc-address", XDSServer: "secure-address", CA: "grpc-address",
		Injector: "webhook-address"}[c.Name]
	if grpc == "" {
		return nil
	}
	r.grpcPort, r.opsPort = port(argument(c.Args, grpc)), port(argument(c.Args, "ops-address"))
	if r.opsPort == 0 {
		return nil
	}
	if _, account, ok := strings.Cut(argument(c.Args, "identity"), "/"); ok {
		r.account = account
	}
	for _, s := range pod.Status.ContainerStatuses {
		r.Ready = r.Ready || s.Name == c.Name && s.Ready
	}
	return r
}

// argument is the value of a flag, "" without it.
func argument(args []string, flag string) string {
	for _, a := range args {
		if value, ok := strings.CutPrefix(a, "--"+flag+"="); ok {
			return value
		}
	}
	return ""
}

func port(address string) int {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// Of lists the replicas of a program, those that are ready first.
func (m *Mesh) Of(program string) (list []*Replica) {
	for _, ready := range []bool{true, false} {
		for _, r := range m.Replicas {
			if r.Program == program && r.Ready == ready {
				list = append(list, r)
			}
		}
	}
	return list
}

// Revisions lists the revisions of a program's replicas, sorted; the one without a name is "default".
func (m *Mesh) Revisions(program string) (list []string) {
	for _, r := range m.Of(program) {
		list = append(list, r.Revision)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Close ends all connections to the Pods.
func (m *Mesh) Close() error {
	var errs []error
	for _, p := range m.pods {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Pod returns a Pod of the cluster, whose connections end with Close.
func (m *Mesh) Pod(namespace, name string) *podconn.Pod {
	p := podconn.New(m.config, m.api, namespace, name)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = append(m.pods, p)
	return p
}

// Dial opens a connection to a port of the replica's Pod.
func (r *Replica) Dial(ctx context.Context, port int) (net.Conn, error) {
	return r.conn.Dial(ctx, port)
}

// Ops returns a client of the replica's operations port, which shows an administrator's token.
func (r *Replica) Ops() *opsclient.Client {
	return &opsclient.Client{Address: r.Name(), Token: r.token, HTTP: r.conn.HTTP(r.opsPort)}
}

// API returns a client of a config-watcher. The caller closes it.
func (r *Replica) API(ctx context.Context) (*configapi.Client, error) {
	roots, err := r.roots(ctx)
	if err != nil {
		return nil, err
	}
	return configapi.Dial(configapi.Config{
		Address: r.Name(), TrustDomain: r.trustDomain, Namespace: r.Namespace, Account: r.account, Roots: roots, Token: r.token,
		Dialer: func(ctx context.Context) (net.Conn, error) { return r.conn.Dial(ctx, r.grpcPort) },
	})
}

// roots are the mesh's root certificates, which the ca publishes in the control plane's namespace.
func (r *Replica) roots(ctx context.Context) (tlsconf.Source, error) {
	m, err := r.mesh.api.CoreV1().ConfigMaps(r.Namespace).Get(ctx, contract.RootConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("ConfigMap %s/%s with the mesh's root certificates does not exist: the ca writes it when it is ready; see its log",
			r.Namespace, contract.RootConfigMap)
	}
	if err != nil {
		return nil, kube.Explain(err)
	}
	material, err := tlsconf.NewMaterial(nil, nil, []byte(m.Data["root-cert.pem"]))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w", r.Namespace, contract.RootConfigMap, err)
	}
	return fixed{material}, nil
}

// fixed is a source of roots that do not change while a command runs.
type fixed struct{ material *tlsconf.Material }

// Current and Changed implement tlsconf.Source.
func (f fixed) Current() (*tlsconf.Material, error) { return f.material, nil }

// Changed is never closed.
func (fixed) Changed() <-chan struct{} { return nil }

// token returns a token of the administrator's service account in the replica's namespace, which the API server issues
// to whoever may ask for it. It is kept in memory alone.
func (r *Replica) token(ctx context.Context) (string, error) {
	m := r.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	if t, ok := m.tokens[r.Namespace]; ok && time.Until(t.until) > time.Minute {
		return t.token, nil
	}
	seconds := int64(tokenSeconds)
	res, err := m.api.CoreV1().ServiceAccounts(r.Namespace).CreateToken(ctx, contract.AdminAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{contract.AdminAudience}, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("service account %s/%s does not exist, whose token shows who may ask the control plane; `fairlead install` "+
			"makes it", r.Namespace, contract.AdminAccount)
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("%w; ask for the right to create serviceaccounts/token of %s in namespace %s", err, contract.AdminAccount,
			r.Namespace)
	case err != nil:
		return "", kube.Explain(err)
	}
	m.tokens[r.Namespace] = issued{res.Status.Token, res.Status.ExpirationTimestamp.Time}
	return res.Status.Token, nil
}

// maxArguments bounds the arguments of one Run; a URL has them.
const maxArguments = 16 << 10

// Run runs a command of the service's own program in its container, with the arguments that the service runs with and
// more, and returns what it prints, at most limit bytes.
func (r *Replica) Run(ctx context.Context, command string, more []string, limit int) ([]byte, error) {
	args := slices.Concat([]string{r.Program, command}, r.args, more)
	size := 0
	for _, a := range args {
		if size += len(a); strings.Contains(a, "$(") {
			return nil, fmt.Errorf("%s: its argument %.200q has a variable whose value is not in the Pod; run `%s %s` in the container yourself",
				r.Name(), a, r.Program, command)
		}
	}
	if size > maxArguments {
		return nil, fmt.Errorf("%s: its arguments have %d bytes, more than %d", r.Name(), size, maxArguments)
	}
	return r.conn.Run(ctx, r.Program, args, limit)
}
