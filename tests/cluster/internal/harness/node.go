package harness

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/netns"
)

//go:embed objects/*.yaml
var objects embed.FS

// volumes is how many persistent volumes there are. None is used twice: each installation of a ca takes one.
const volumes = 20

// node is a cluster in its namespaces.
type node struct {
	Dir
	plane *kubeapi.ControlPlane
	// died ends the cluster.
	died context.CancelCauseFunc
	// Kubeconfigs of components.
	controllers, scheduler, kubelet, proxy string
	config                                 *rest.Config
	client                                 *kubernetes.Clientset
}

// Node starts the cluster's components and returns when one of them has ended, or could not start: always an error.
func Node(ctx context.Context, d Dir, images []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	n := &node{Dir: d, plane: plane(d), died: cancel}
	began := time.Now()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"files, mounts, network and control groups are there", n.prepare},
		{"etcd, containerd and the API server are ready", func(ctx context.Context) error { return n.base(ctx, images) }},
		{"the node is ready and DNS answers", n.rest},
	} {
		if err := step.do(ctx); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		fmt.Printf("%.1f s: %s\n", time.Since(began).Seconds(), step.name)
	}
	if err := os.WriteFile(n.ready(), nil, 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// prepare makes everything that is there before the first component.
func (n *node) prepare(context.Context) error {
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := mounts(n.Dir); err != nil {
		return err
	}
	if err := network(); err != nil {
		return err
	}
	if err := makeCgroups(n.Cgroup()); err != nil {
		return err
	}
	if err := n.plane.WritePKI(); err != nil {
		return err
	}
	if err := n.plane.Issue("kubelet", nodeName, nil, kubeapi.Names{DNS: []string{nodeName}, IP: []net.IP{nodeIP.AsSlice()}}); err != nil {
		return err
	}
	for _, u := range []struct {
		path       *string
		name, user string
		groups     []string
	}{
		{new(string), "admin", "admin", []string{"system:masters"}},
		{&n.controllers, "controller-manager", "system:kube-controller-manager", nil},
		{&n.scheduler, "scheduler", "system:kube-scheduler", nil},
		{&n.kubelet, "kubelet-client", "system:node:" + nodeName, []string{"system:nodes"}},
		{&n.proxy, "proxy", "system:kube-proxy", nil},
	} {
		var err error
		if *u.path, err = n.plane.UserKubeconfig(u.name, u.user, u.groups...); err != nil {
			return err
		}
	}
	for name, content := range configurations(n.Dir, n.plane, n.proxy) {
		if err := writeFile(n.Path(name), content); err != nil {
			return err
		}
	}
	// The machine's plugins, in a directory to which pods of the cluster may add others.
	if err := os.CopyFS(n.CNI("bin"), os.DirFS(cniPlugins)); err != nil {
		return err
	}
	for i := range volumes {
		if err := os.MkdirAll(n.volume(i), 0o777); err != nil {
			return err
		}
	}
	var err error
	if n.config, err = clientcmd.BuildConfigFromFlags("", n.Kubeconfig()); err != nil {
		return err
	}
	n.config.QPS = -1
	n.client, err = kubernetes.NewForConfig(n.config)
	return err
}

func (n *node) volume(i int) string { return n.Path("volumes", fmt.Sprint(i)) }

// start starts a component, a program of KUBE_BIN or a path, whose end ends the cluster.
func (n *node) start(name, path string, args ...string) error {
	if path == "" {
		var err error
		if path, err = kubeapi.Program(name); err != nil {
			return err
		}
	}
	p, err := netns.Start(netns.Program{Name: name, Path: path, Args: args, Stdout: n.Log(name), Stderr: n.Log(name)})
	if err != nil {
		return err
	}
	go func() {
		err := p.Err()
		if err == nil {
			err = errors.New("status 0")
		}
		n.died(fmt.Errorf("%s ended: %w; %s ends with:\n%s", name, err, n.Log(name), tail(n.Log(name), 10)))
	}()
	return nil
}

// base starts what the others connect to: begun earlier, they would wait for seconds.
func (n *node) base(ctx context.Context, images []string) error {
	containerd, err := exec.LookPath("containerd")
	if err != nil {
		return err
	}
	if err := n.start("containerd", containerd, "--config="+n.Path("containerd.toml")); err != nil {
		return err
	}
	if err := n.start("etcd", "", n.plane.EtcdArgs()...); err != nil {
		return err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		if err := eventually(ctx, "containerd", func() error { return dial(ctx, "unix", containerdSocket) }); err != nil {
			return err
		}
		return load(ctx, containerdSocket, images, nil)
	})
	both.Go(func() error {
		if err := eventually(ctx, "etcd", func() error { return dial(ctx, "tcp", etcdAddress.String()) }); err != nil {
			return err
		}
		if err := n.start("kube-apiserver", "", append(n.plane.APIServerArgs(), apiServerArgs(n.plane)...)...); err != nil {
			return err
		}
		return eventually(ctx, "the API server", func() error {
			if err := kubeapi.Ready(ctx, n.client); err != nil {
				return err
			}
			_, err := n.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
			return err
		})
	})
	return both.Wait()
}

// rest starts the other components and waits until pods can run and find each other by name.
func (n *node) rest(ctx context.Context) error {
	if err := n.start("kube-controller-manager", "", controllerManagerArgs(n.plane, n.controllers)...); err != nil {
		return err
	}
	if err := n.start("kube-scheduler", "", schedulerArgs(n.scheduler)...); err != nil {
		return err
	}
	if err := n.start("kubelet", "", kubeletArgs(n.Dir, n.kubelet)...); err != nil {
		return err
	}
	if err := n.start("kube-proxy", "", "--config="+n.Path("kube-proxy.yaml")); err != nil {
		return err
	}
	entries, err := objects.ReadDir("objects")
	if err != nil {
		return err
	}
	for _, e := range entries {
		content, err := objects.ReadFile("objects/" + e.Name())
		if err != nil {
			return err
		}
		list, err := kubeapi.Decode(content)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		if err := kubeapi.Apply(ctx, n.config, list...); err != nil {
			return err
		}
	}
	for i := range volumes {
		if _, err := n.client.CoreV1().PersistentVolumes().Create(ctx, n.persistentVolume(i), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := eventually(ctx, "the node", func() error {
		got, err := n.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return errors.New(c.Message)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(dns.String(), "53"))
	}}
	return eventually(ctx, "DNS", func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+domain+".")
		return err
	})
}

// persistentVolume is a directory on the node, whose owner the kubelet changes to a pod's fsGroup.
func (n *node) persistentVolume(i int) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("local-%d", i)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, StorageClassName: "local",
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: n.volume(i)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName}}},
			}}}},
		},
	}
}

func dial(ctx context.Context, network, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		conn.Close()
	}
	return err
}

// eventually calls f until it returns nil or ctx ends.
func eventually(ctx context.Context, what string, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
