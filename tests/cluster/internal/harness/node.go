package harness

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/tests/internal/kubeapi"
)

//go:embed objects/*.yaml
var objects embed.FS

// volumes is how many persistent volumes there are. None is used twice: each installation of a ca takes one.
const volumes = 20

// node is the first node, which has the control plane, too.
type node struct {
	member
	// Kubeconfigs of components.
	controllers, scheduler string
}

// Node starts the cluster's components and returns when one of them has ended, or could not start: always an error.
func Node(ctx context.Context, d Dir, images []string) error {
	at, err := d.addresses()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	n := &node{member: firstMember(d, at)}
	n.died = cancel
	return n.run(ctx,
		step{"files, mounts, network and control groups are there", n.prepare},
		step{"etcd, containerd and the API server are ready", func(ctx context.Context) error { return n.base(ctx, images) }},
		step{"the node is ready and DNS answers", n.rest},
	)
}

// prepare makes everything that is there before the first component.
func (n *node) prepare(context.Context) error {
	if err := n.own(); err != nil {
		return err
	}
	if err := network(n.ip); err != nil {
		return err
	}
	if err := n.plane.WritePKI(); err != nil {
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
	} {
		var err error
		if *u.path, err = n.plane.UserKubeconfig(u.name, u.user, u.groups...); err != nil {
			return err
		}
	}
	for i := range volumes {
		if err := os.MkdirAll(n.volume(i), 0o777); err != nil {
			return err
		}
	}
	if err := n.configure(); err != nil {
		return err
	}
	return n.writeCNI(n.addresses.nodePods)
}

func (n *node) volume(i int) string { return n.Path("volumes", fmt.Sprint(i)) }

// base starts what the others connect to: begun earlier, they would wait for seconds.
func (n *node) base(ctx context.Context, images []string) error {
	if err := n.startContainerd(); err != nil {
		return err
	}
	if err := n.start("etcd", "", n.plane.EtcdArgs()...); err != nil {
		return err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		if err := containerdAnswers(ctx); err != nil {
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

// startBalancer starts what gives Services of type LoadBalancer addresses, in a cluster that is to have it.
func (n *node) startBalancer() error {
	if _, err := os.Stat(n.balancerFile()); err != nil {
		return nil //nolint:nilerr // without the file there is none
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return n.start("balancer", self, "balancer", "--dir", string(n.Dir))
}

// rest starts the other components and waits until pods can run and find each other by name.
func (n *node) rest(ctx context.Context) error {
	if err := n.start("kube-controller-manager", "", controllerManagerArgs(n.plane, n.addresses.pods, n.controllers)...); err != nil {
		return err
	}
	if err := n.start("kube-scheduler", "", schedulerArgs(n.scheduler)...); err != nil {
		return err
	}
	if err := n.startKubelet(); err != nil {
		return err
	}
	if err := n.startBalancer(); err != nil {
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
		list, err := kubeapi.Decode(bytes.ReplaceAll(content, []byte("@dns@"), []byte(n.addresses.dns.String())))
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
	if err := n.ready(ctx); err != nil {
		return err
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(n.addresses.dns.String(), "53"))
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
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: []string{nodeName}}},
			}}}},
		},
	}
}
