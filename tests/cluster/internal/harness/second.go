package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SecondNode is the name of the node that Join adds, and in the first node's network that of the interface there.
const SecondNode = "node2"

// What the processes of Join hand on to the second node: the first one's network namespace and its root directory.
const (
	firstNetwork = 3
	firstRoot    = 4
)

var secondFiles = []uintptr{firstNetwork, firstRoot}

// Join adds a second node to a cluster that is up, in namespaces of its own, and returns when pods can run there. It
// has the images of the first. One that is there is left as it is. If it fails, or ctx ends, only its logs are kept.
func Join(ctx context.Context, d Dir, out io.Writer) error {
	if err := check(); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	pid, err := d.Up()
	if err != nil {
		return fmt.Errorf("%w; `make cluster-up` starts one", err)
	}
	if _, err := d.second().Up(); err == nil {
		fmt.Fprintf(out, "node %s is there already; `cluster leave` removes it\n", SecondNode)
		return nil
	}
	// One may have ended by itself, or the Join that waited for it was killed.
	if err := removeSecond(ctx, d); err != nil {
		return err
	}
	began := time.Now()
	if err := inside(ctx, d, pid); err != nil {
		words := tail(d.second().Log("cluster"), 20)
		err = fmt.Errorf("node %s did not join: %w\n%s", SecondNode, err, words)
		return errors.Join(err, removeSecond(context.WithoutCancel(ctx), d))
	}
	fmt.Fprintf(out, "node %s has joined after %.1f s\n", SecondNode, time.Since(began).Seconds())
	return nil
}

// inside runs JoinInside among the cluster's processes: the node is then a descendant of the cluster's process 1, which
// waits for it should it end.
func inside(ctx context.Context, d Dir, pid int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The logs are with those of the first node, which outlive the cluster.
	if err := errors.Join(os.MkdirAll(string(d.second()), 0o755), os.MkdirAll(d.Path("log", SecondNode), 0o755)); err != nil {
		return err
	}
	if err := os.Symlink(d.Path("log", SecondNode), d.second().Path("log")); err != nil {
		return err
	}
	opened := map[string]*os.File{}
	for _, name := range []string{"ns/net", "root", "ns/pid"} {
		if opened[name], err = os.Open(fmt.Sprintf("/proc/%d/%s", pid, name)); err != nil {
			return err
		}
		defer opened[name].Close()
	}
	cmd := exec.CommandContext(ctx, self, "join-inside", "--dir", string(d))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.ExtraFiles = []*os.File{opened["ns/net"], opened["root"]}
	var said strings.Builder
	cmd.Stderr = &said
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(opened["ns/pid"].Fd()), unix.CLONE_NEWPID); err != nil {
			done <- fmt.Errorf("enter the cluster's processes: %w", err)
			return
		}
		done <- cmd.Run()
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}

// JoinInside starts the second node's process 1 for Join, and waits until the node is ready.
func JoinInside(ctx context.Context, d Dir) error {
	return start(ctx, d.second(), []string{"init-second", "--dir", string(d)},
		os.NewFile(firstNetwork, "network of "+nodeName), os.NewFile(firstRoot, "root of "+nodeName))
}

// Leave removes the second node, as if its machine were switched off for good: what runs on it has no time to end.
func Leave(ctx context.Context, d Dir, out io.Writer) error {
	if err := checkRoot(); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := d.Up(); err != nil {
		return fmt.Errorf("%w; `make cluster-up` starts one", err)
	}
	if err := removeSecond(ctx, d); err != nil {
		return fmt.Errorf("remove node %s: %w", SecondNode, err)
	}
	fmt.Fprintf(out, "node %s has left, and nothing of it is left\n", SecondNode)
	return nil
}

// removeSecond ends the second node, if there is one, and removes what it leaves on the machine and in the API.
func removeSecond(ctx context.Context, d Dir) error {
	s := d.second()
	if _, err := os.Stat(string(s)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := end(s); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"node", SecondNode, "--ignore-not-found"},
		{"pods", "--all-namespaces", "--field-selector=spec.nodeName=" + SecondNode, "--force"},
	} {
		args = append([]string{"exec", "--dir", string(d), "kubectl", "delete"}, args...)
		if said, err := exec.CommandContext(ctx, self, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args[3:], " "), err, said)
		}
	}
	return errors.Join(s.clean(), os.Remove(string(s)))
}

// Second is to the second node what Node is to the first, whose namespaces it has by the files of Join.
func Second(ctx context.Context, d Dir) error {
	at, err := d.addresses()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &joined{member: secondMember(d, at)}
	s.died = cancel
	return s.run(ctx,
		step{"files, mounts, network and control groups are there", s.prepare},
		step{"containerd has the images of the first node", s.images},
		step{"the node is ready", s.rest},
	)
}

// joined is the second node.
type joined struct {
	member
	// first is the first node's network, and link the index of the interface to this node there.
	first *netlink.Handle
	link  int
}

func (j *joined) prepare(context.Context) error {
	if err := j.own(); err != nil {
		return err
	}
	if err := j.network(); err != nil {
		return err
	}
	if err := j.plane.ReadPKI(); err != nil {
		return err
	}
	return j.configure()
}

// network connects the node to the first, by which it finds everything else.
func (j *joined) network() error {
	var err error
	if j.first, err = netlink.NewHandleAt(firstNetwork, unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("the first node's network: %w", err)
	}
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	// The kernel takes a moment to remove the interface of a node that has left.
	if old, err := j.first.LinkByName(SecondNode); err == nil {
		if err := j.first.LinkDel(old); err != nil {
			return fmt.Errorf("interface %s of a node that has left: %w", SecondNode, err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = SecondNode
	if err := j.first.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: uplink, PeerNamespace: netlink.NsFd(int(own.Fd()))}); err != nil {
		return fmt.Errorf("make the interfaces between the nodes: %w", err)
	}
	there, err := linkUp(j.first, SecondNode)
	if err != nil {
		return err
	}
	j.link = there.Attrs().Index
	peer := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(j.addresses.node, 32)), Peer: ipNet(netip.PrefixFrom(j.ip, 32))}
	if err := j.first.AddrAdd(there, peer); err != nil {
		return fmt.Errorf("%s: %w", SecondNode, err)
	}
	here := &netlink.Handle{}
	if _, err := linkUp(here, "lo"); err != nil {
		return err
	}
	link, err := linkUp(here, uplink)
	if err != nil {
		return err
	}
	if err := here.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(j.ip, 24))}); err != nil {
		return fmt.Errorf("%s: %w", uplink, err)
	}
	if err := here.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everywhere, Gw: j.addresses.node.AsSlice()}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return forward()
}

// images starts containerd, and copies the first node's images to it.
func (j *joined) images(ctx context.Context) error {
	if err := j.startContainerd(); err != nil {
		return err
	}
	if err := containerdAnswers(ctx); err != nil {
		return err
	}
	return copyImages(ctx, fmt.Sprintf("/proc/%d/fd/%d%s", os.Getpid(), firstRoot, containerdSocket), containerdSocket)
}

// rest starts the kubelet, which registers the node, and gives pods the addresses that the cluster has for them there.
func (j *joined) rest(ctx context.Context) error {
	if err := j.startKubelet(); err != nil {
		return err
	}
	var pods netip.Prefix
	if err := eventually(ctx, "the addresses of "+j.name+"'s pods", func() error {
		got, err := j.client.CoreV1().Nodes().Get(ctx, j.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err = netip.ParsePrefix(got.Spec.PodCIDR)
		return err
	}); err != nil {
		return err
	}
	if err := j.first.RouteAdd(&netlink.Route{LinkIndex: j.link, Dst: ipNet(pods), Gw: j.ip.AsSlice()}); err != nil {
		return fmt.Errorf("route to %s: %w", pods, err)
	}
	if err := j.writeCNI(pods); err != nil {
		return err
	}
	return j.ready(ctx)
}
