package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/wait"
)

// member is a node of the cluster, in namespaces of its own: what every node runs.
type member struct {
	// Dir has the node's own files; those of the first node are beside the control plane's.
	Dir
	name, zone string
	ip         netip.Addr
	// addresses are the cluster's.
	addresses addresses
	plane     *kubeapi.ControlPlane
	// died ends the node; with the first one the cluster ends.
	died context.CancelCauseFunc
	// Kubeconfigs of components.
	kubelet, proxy string
	config         *rest.Config
	client         *kubernetes.Clientset
}

// firstMember is the node that Up starts, secondMember that of Join.
func firstMember(d Dir, at addresses) member {
	return member{Dir: d, name: nodeName, zone: "zone-1", ip: at.node, addresses: at, plane: plane(d, at)}
}

func secondMember(d Dir, at addresses) member {
	return member{Dir: d.second(), name: SecondNode, zone: "zone-2", ip: at.second, addresses: at, plane: plane(d, at)}
}

// certificate is the name of the kubelet's, which it serves with.
func (m *member) certificate() string { return "kubelet-" + m.name }

// own gives the node a host name, a file system and control groups.
func (m *member) own() error {
	if err := unix.Sethostname([]byte(m.name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := mounts(m.Dir, m.addresses.dns); err != nil {
		return err
	}
	return makeCgroups(m.Cgroup())
}

// configure writes the certificates and the configurations of the node's components. The authorities are there, and the
// administrator's kubeconfig is.
func (m *member) configure() error {
	if err := m.plane.Issue(m.certificate(), m.name, nil, kubeapi.Names{DNS: []string{m.name}, IP: []net.IP{m.ip.AsSlice()}}); err != nil {
		return err
	}
	var err error
	if m.kubelet, err = m.plane.UserKubeconfig("kubelet-client-"+m.name, "system:node:"+m.name, "system:nodes"); err != nil {
		return err
	}
	if m.proxy, err = m.plane.UserKubeconfig("proxy-"+m.name, "system:kube-proxy"); err != nil {
		return err
	}
	for name, content := range configurations(m) {
		if err := writeFile(m.Path(name), content); err != nil {
			return err
		}
	}
	// The machine's plugins, in a directory to which pods of the cluster may add others.
	if err := os.CopyFS(m.CNI("bin"), os.DirFS(cniPlugins)); err != nil {
		return err
	}
	if m.config, err = clientcmd.BuildConfigFromFlags("", Dir(m.plane.Dir).Kubeconfig()); err != nil {
		return err
	}
	m.config.QPS = -1
	m.client, err = kubernetes.NewForConfig(m.config)
	return err
}

// start starts a component, a program of KUBE_BIN or a path, whose end ends the node.
func (m *member) start(name, path string, args ...string) error {
	if path == "" {
		var err error
		if path, err = kubeapi.Program(name); err != nil {
			return err
		}
	}
	p, err := netns.Start(netns.Program{Name: name, Path: path, Args: args, Stdout: m.Log(name), Stderr: m.Log(name)})
	if err != nil {
		return err
	}
	go func() {
		err := p.Err()
		if err == nil {
			err = errors.New("status 0")
		}
		m.died(fmt.Errorf("%s ended: %w; %s ends with:\n%s", name, err, m.Log(name), tail(m.Log(name), 10)))
	}()
	return nil
}

func (m *member) startContainerd() error {
	path, err := exec.LookPath("containerd")
	if err != nil {
		return err
	}
	return m.start("containerd", path, "--config="+m.Path("containerd.toml"))
}

// containerdAnswers waits until containerd, which was started, takes images.
func containerdAnswers(ctx context.Context) error {
	return eventually(ctx, "containerd", func() error { return dial(ctx, "unix", containerdSocket) })
}

// startKubelet starts kubelet, kube-proxy and what enforces NetworkPolicies. The API server and containerd answer.
func (m *member) startKubelet() error {
	if err := m.start("kubelet", "", kubeletArgs(m)...); err != nil {
		return err
	}
	if err := m.start("kube-proxy", "", "--config="+m.Path("kube-proxy.yaml")); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return m.start("network-policies", self, "policies", "--dir", m.plane.Dir)
}

// ready waits until pods can run on the node.
func (m *member) ready(ctx context.Context) error {
	return eventually(ctx, "node "+m.name, func() error {
		got, err := m.client.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range got.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", got.Status.Conditions)
	})
}

// run takes steps, says when each is done, and then waits until a component has ended; always an error.
func (m *member) run(ctx context.Context, steps ...step) error {
	began := time.Now()
	for _, s := range steps {
		if err := s.do(ctx); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		fmt.Printf("%.1f s: %s\n", time.Since(began).Seconds(), s.done)
	}
	if err := os.WriteFile(m.readyFile(), nil, 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// step is a part of a node's start.
type step struct {
	// done says what is there after it.
	done string
	do   func(context.Context) error
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
		if wait.Pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
}
