package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kube "k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/caller"
	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/store"
)

// Node is a Kubernetes cluster of one node on this machine, in which Fairlead is installed with one Pod for the whole
// control plane (profile compact). One topology at a time is in it.
type Node struct {
	*kube.Clientset
	// Root is the node's file system, as this process sees it. The directory of a topology has the same path there.
	Root string
	// Image is that of the echo application.
	Image string
	// Issuer is the authority of applications and of servers of keys, which the installation trusts for keys.
	Issuer *format.Material
	// Resolver is the cluster's name server, IP:port. The name server of the world outside is at Outside, of the node.
	Resolver, Outside string
}

const (
	// controlPlane selects the Pod of the control plane; its config-watcher listens on these ports.
	controlPlane = "app=fairlead"
	watcherGRPC  = 15060
	watcherOps   = 15034
	// goneWithin is how long namespaces may take to be deleted.
	goneWithin = 2 * time.Minute
	// lookAgain is how long to rest between two questions to the API server.
	lookAgain = 50 * time.Millisecond
)

// firstClusterVIP is the first address given to Services of a topology: API servers take those they choose themselves
// from the other end of the range.
var firstClusterVIP = netip.MustParseAddr("198.19.0.20")

// Cluster is a topology whose workloads are Pods: it has injected sidecars and gateways, and the control plane of the
// cluster. Calls are made from within the network of a Pod. Nothing of it can be stopped, killed, added or removed.
type Cluster struct {
	*Harness
	node Node
	// host is the network of the control plane's Pod.
	host *netns.Host
	// kept are addresses to which no connection is cut: those of Services and Pods that belong to no topology.
	kept map[netip.Addr]bool
	// installed is the MeshConfig of the installation.
	installed string
	// restarts counts those of containers when the topology was ready.
	restarts map[string]int32
}

// errMachines is the error of what a scenario may ask of machines alone.
var errMachines = errors.New("cannot be done to a Pod of a cluster")

// StartInCluster runs a topology as Pods. It returns when every Pod is ready and every proxy has acknowledged the
// configuration.
func StartInCluster(ctx context.Context, t *format.Topology, o Options, node Node) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	c := &Cluster{Harness: &Harness{topology: t, options: o, workloads: map[string]*workload{}, resolver: node.Resolver, logsByMesh: true},
		node: node,
		kept: map[netip.Addr]bool{}}
	c.ground, c.issuer = c, node.Issuer
	if err := c.start(ctx); err != nil {
		err = fmt.Errorf("topology %s: %w", t.Name, err)
		return nil, errors.Join(err, errors.New(strings.Join(c.unready(context.WithoutCancel(ctx)), "\n")), c.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	began := time.Now()
	for _, dir := range []string{"logs", "shared"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return err
		}
	}
	var err error
	if c.mesh, err = meshOf(c.topology.Mesh, c.options.OnDemand, c.logsByMesh); err != nil {
		return err
	}
	for i := range c.topology.Workloads {
		l := c.newWorkload(&c.topology.Workloads[i])
		c.workloads[l.spec.Name] = l
		c.order = append(c.order, l)
	}
	if err := c.reach(ctx); err != nil {
		return fmt.Errorf("the control plane in the cluster: %w", err)
	}
	if err := c.settings(ctx); err != nil {
		return err
	}
	if err := c.writePods(ctx); err != nil {
		return err
	}
	c.log("Pods are made after %s", since(began))
	if err := wait.Each(c.order, func(l *workload) error { return c.await(ctx, l) }); err != nil {
		return err
	}
	c.log("Pods are ready after %s", since(began))
	if err := c.standOutside(); err != nil {
		return err
	}
	if err := c.writeServices(ctx); err != nil {
		return err
	}
	if c.restarts, err = c.counts(ctx); err != nil {
		return err
	}
	if err := c.store.Acked(ctx, 0); err != nil {
		return err
	}
	c.log("configured after %s", since(began))
	return nil
}

// reach finds the control plane, and becomes its administrator.
func (c *Cluster) reach(ctx context.Context) error {
	pods, err := c.node.CoreV1().Pods(contract.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: controlPlane})
	if err != nil {
		return err
	}
	if len(pods.Items) != 1 {
		return fmt.Errorf("%d Pods %s in namespace %s, want one: install Fairlead with profile compact", len(pods.Items), controlPlane,
			contract.SystemNamespace)
	}
	pod := &pods.Items[0]
	account := pod.Spec.ServiceAccountName
	if c.host, err = open(pod); err != nil {
		return err
	}
	roots, err := c.node.CoreV1().ConfigMaps(contract.SystemNamespace).Get(ctx, "istio-ca-root-cert", metav1.GetOptions{})
	if err != nil {
		return err
	}
	seconds := int64((2 * time.Hour).Seconds())
	token, err := c.node.CoreV1().ServiceAccounts(contract.SystemNamespace).CreateToken(ctx, contract.AdminAccount,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{Audiences: []string{contract.AdminAudience}, ExpirationSeconds: &seconds},
		}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	at := store.Watcher{
		GRPC: netip.AddrPortFrom(c.host.IP, watcherGRPC).String(), Ops: fmt.Sprintf("127.0.0.1:%d", watcherOps), RootFile: c.path("roots.pem"),
		TokenFile: c.path("token-admin"), Dial: dialFrom(c.host),
		ID: spiffeid.RequireFromSegments(spiffeid.RequireTrustDomainFromString(c.mesh.trustDomain), "ns", contract.SystemNamespace, "sa",
			account),
	}
	if err := errors.Join(os.WriteFile(at.RootFile, []byte(roots.Data["root-cert.pem"]), 0o600),
		os.WriteFile(at.TokenFile, []byte(token.Status.Token), 0o600)); err != nil {
		return err
	}
	config := c.storeConfig(at)
	config.FirstVIP = firstClusterVIP
	if c.store, err = store.New(config); err != nil {
		return err
	}
	services, err := c.node.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range services.Items {
		for _, ip := range document.Addresses(anyList(services.Items[i].Spec.ClusterIPs)) {
			c.kept[ip] = true
		}
	}
	return nil
}

// standOutside makes the node the machine outside of the mesh, and has it answer for the names of that world.
func (c *Cluster) standOutside() error {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range all {
		network, ok := a.(*net.IPNet)
		if !ok || len(c.order) == 0 || !network.Contains(c.order[0].host.IP.AsSlice()) {
			continue
		}
		ip, _ := netip.AddrFromSlice(network.IP)
		if c.outside, err = netns.Open(format.Outside, "/proc/thread-self/ns/net", ip.Unmap()); err != nil {
			return err
		}
		c.issuers = c.outside
		return c.serveNames(c.outside, c.node.Outside, c.outsideName)
	}
	return errors.New("this process is not in the network of the node: no address of it is one of the Pods' network")
}

func anyList(texts []string) []any {
	out := make([]any, len(texts))
	for i, s := range texts {
		out[i] = s
	}
	return out
}

// settings lays the MeshConfig of the topology over that of the installation, and makes the topology's namespaces.
func (c *Cluster) settings(ctx context.Context) error {
	installed, err := c.node.CoreV1().ConfigMaps(contract.SystemNamespace).Get(ctx, document.MeshObject, metav1.GetOptions{})
	if err != nil {
		return err
	}
	c.installed = installed.Data["mesh"]
	merged, own := document.Tree{}, document.Tree{}
	if err := errors.Join(yaml.Unmarshal([]byte(c.installed), &merged), yaml.Unmarshal(c.mesh.config, &own)); err != nil {
		return err
	}
	if proxy, ok := own["defaultConfig"].(document.Tree); ok {
		if under, ok := merged["defaultConfig"].(document.Tree); ok {
			maps.Copy(under, proxy)
			own["defaultConfig"] = under
		}
	}
	maps.Copy(merged, own)
	if c.mesh.config, err = yaml.Marshal(merged); err != nil {
		return err
	}
	docs := []string{document.Encode(c.mesh.object())}
	for _, name := range c.namespaces() {
		docs = append(docs, document.Encode(document.WithLabels(document.Object("Namespace", "", name, nil), c.topology.Namespaces[name])))
	}
	_, err = c.store.Apply(ctx, strings.Join(docs, "\n---\n"))
	return err
}

// namespaces are those that come and go with the topology.
func (c *Cluster) namespaces() []string {
	names := maps.Clone(c.topology.Namespaces)
	for _, l := range c.order {
		if _, ok := names[l.spec.Namespace]; !ok {
			names[l.spec.Namespace] = nil
		}
	}
	delete(names, format.RootNamespace)
	return slices.Sorted(maps.Keys(names))
}

// writeServices applies the Services, with the Pods that they lead to.
func (c *Cluster) writeServices(ctx context.Context) error {
	for _, l := range c.order {
		pod, err := c.node.CoreV1().Pods(l.spec.Namespace).Get(ctx, l.spec.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		doc, err := documentOf(pod)
		if err != nil {
			return err
		}
		c.store.Knows(doc)
	}
	_, err := c.store.Apply(ctx, strings.Join(c.serviceDocuments(), "\n---\n"))
	return err
}

// Close deletes what the topology consists of, and waits until its namespaces are gone.
func (c *Cluster) Close(ctx context.Context) error {
	var failed []error
	if c.store != nil {
		failed = append(failed, c.store.Close())
	}
	if c.stopNames != nil {
		failed = append(failed, c.stopNames())
	}
	for _, l := range c.order {
		if l.host != nil {
			failed = append(failed, l.host.Close())
		}
	}
	for _, host := range []*netns.Host{c.host, c.outside} {
		if host != nil {
			failed = append(failed, host.Close())
		}
	}
	if c.installed != "" {
		failed = append(failed, c.restoreMesh(ctx))
	}
	failed = append(failed, wait.Each(c.namespaces(), func(name string) error {
		err := c.node.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return wait.Until(ctx, lookAgain, goneWithin, func() error {
			_, err := c.node.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err == nil:
				err = fmt.Errorf("namespace %s is not gone", name)
			}
			return err
		})
	}))
	return errors.Join(failed...)
}

func (c *Cluster) restoreMesh(ctx context.Context) error {
	config, err := c.node.CoreV1().ConfigMaps(contract.SystemNamespace).Get(ctx, document.MeshObject, metav1.GetOptions{})
	if err != nil {
		return err
	}
	config.Data["mesh"] = c.installed
	_, err = c.node.CoreV1().ConfigMaps(contract.SystemNamespace).Update(ctx, config, metav1.UpdateOptions{})
	return err
}

// revive implements ground: what runs in a cluster, the cluster keeps running.
func (c *Cluster) revive(ctx context.Context, _ *Snapshot) error {
	if unready := c.unready(ctx); len(unready) > 0 {
		return errors.New(strings.Join(unready, "; "))
	}
	return nil
}

// died implements ground: it lists containers that have started again.
func (c *Cluster) died() (out []string) {
	now, err := c.counts(context.Background())
	if err != nil {
		return []string{err.Error()}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if n := now[name] - c.restarts[name]; n > 0 {
			out = append(out, fmt.Sprintf("container %s has started %d times more", name, n))
		}
	}
	c.restarts = now
	return out
}

// disconnect implements ground.
func (c *Cluster) disconnect() error {
	return wait.Each(c.order, func(l *workload) error {
		return l.host.Disconnect(func(_, remote netip.AddrPort) bool { return c.kept[remote.Addr().Unmap()] })
	})
}

// logs implements ground: those of the control plane, and of the proxies.
func (c *Cluster) logs() []string {
	files, _ := filepath.Glob(filepath.Join(c.node.Root, podLogs, contract.SystemNamespace+"_*", "*", "*.log")) // the pattern is a good one
	for _, l := range c.order {
		if l.live.log != "" {
			files = append(files, l.live.log)
		}
	}
	return files
}

// Machine is where the calls of a workload start.
func (c *Cluster) Machine(name string) (caller.Machine, error) {
	if name == format.Outside {
		return caller.Machine{Host: c.outside, Resolver: c.node.Outside}, nil
	}
	l, err := c.find(name)
	if err != nil {
		return caller.Machine{}, err
	}
	return caller.Machine{Host: l.host, Resolver: c.resolver, Search: l.search()}, nil
}

// Stop implements runner.Fleet, as do the following: Eligible lets no scenario come here that needs them.
func (*Cluster) Stop(_ context.Context, target string) error { return refuse("stop", target) }

// Start cannot be done.
func (*Cluster) Start(_ context.Context, target string) error { return refuse("start", target) }

// Kill cannot be done.
func (*Cluster) Kill(_ context.Context, target string) error { return refuse("kill", target) }

// Restart cannot be done.
func (*Cluster) Restart(_ context.Context, target string) error { return refuse("restart", target) }

// Add cannot be done.
func (*Cluster) Add(_ context.Context, target string) error { return refuse("add", target) }

// Remove cannot be done.
func (*Cluster) Remove(_ context.Context, target string) error { return refuse("remove", target) }

// Files cannot be done.
func (*Cluster) Files(_ context.Context, target string, _ map[string]*format.FileText) error {
	return refuse("files", target)
}

func refuse(verb, target string) error { return fmt.Errorf("%s %s: %w", verb, target, errMachines) }

// counts are the restarts of all containers of the control plane and the topology.
func (c *Cluster) counts(ctx context.Context) (map[string]int32, error) {
	out := map[string]int32{}
	var mu sync.Mutex
	err := wait.Each(append(c.namespaces(), contract.SystemNamespace), func(namespace string) error {
		pods, err := c.node.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range pods.Items {
			for _, s := range statuses(&pods.Items[i]) {
				out[namespace+"/"+pods.Items[i].Name+"/"+s.Name] = s.RestartCount
			}
		}
		return nil
	})
	return out, err
}

func statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

// unready tells of Pods that are not ready.
func (c *Cluster) unready(ctx context.Context) (out []string) {
	for _, namespace := range c.namespaces() {
		pods, err := c.node.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return append(out, err.Error())
		}
		for i := range pods.Items {
			if why := waitsFor(&pods.Items[i]); why != "" {
				out = append(out, why)
			}
		}
	}
	return out
}
