package kube

import (
	"context"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// API is a real etcd and kube-apiserver.
type API struct {
	// Kubeconfig is an administrator's.
	Kubeconfig string
	// Client and Dynamic are not slowed down; Client speaks protobuf.
	Client  *kubernetes.Clientset
	Dynamic dynamic.Interface

	config    *rest.Config
	processes []*machine.Process
}

// startWithin bounds the start of etcd, the API server and istiod.
const startWithin = 3 * time.Minute

// StartAPI runs etcd and kube-apiserver, of the directories in $KUBE_BIN, on the given processors, with all files in
// dir, and returns when the API server is ready.
func StartAPI(ctx context.Context, dir string, on *unix.CPUSet) (*API, error) {
	free, err := machine.FreePorts(3)
	if err != nil {
		return nil, err
	}
	at := make([]netip.AddrPort, len(free))
	for i, f := range free {
		if at[i], err = netip.ParseAddrPort(f); err != nil {
			return nil, err
		}
	}
	plane := kubeapi.ControlPlane{Dir: dir, Etcd: at[0], EtcdPeer: at[1], API: at[2], Services: netip.MustParsePrefix("198.18.0.0/15")}
	if err := plane.WritePKI(); err != nil {
		return nil, err
	}
	a := &API{}
	if a.Kubeconfig, err = plane.UserKubeconfig("admin", "admin", "system:masters"); err != nil {
		return nil, err
	}
	if a.config, err = clientcmd.BuildConfigFromFlags("", a.Kubeconfig); err != nil {
		return nil, err
	}
	a.config.QPS = -1
	if a.Dynamic, err = dynamic.NewForConfig(a.config); err != nil {
		return nil, err
	}
	binary := rest.CopyConfig(a.config)
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	if a.Client, err = kubernetes.NewForConfig(binary); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		name string
		args []string
	}{{"etcd", plane.EtcdArgs()}, {"kube-apiserver", plane.AloneArgs()}} {
		if err := a.start(dir, p.name, p.args, on); err != nil {
			a.Stop()
			return nil, err
		}
	}
	err = a.processes[1].Until(ctx, startWithin, func() error { return kubeapi.Serves(ctx, a.Client) })
	if err != nil {
		a.Stop()
		return nil, err
	}
	return a, nil
}

func (a *API) start(dir, name string, args []string, on *unix.CPUSet) error {
	path, err := kubeapi.Program(name)
	if err != nil {
		return err
	}
	log := filepath.Join(dir, name+".log")
	p, err := machine.Start(process.Program{Name: name, Path: path, Args: args, Stdout: log, Stderr: log}, on)
	if err == nil {
		a.processes = append(a.processes, p)
	}
	return err
}

// Stop ends both.
func (a *API) Stop() {
	for _, p := range a.processes {
		p.Kill() // nothing of it is kept
	}
}

// istiodEnv is what Istio's Deployment sets; the webhooks have no configuration here.
var istiodEnv = []string{
	"POD_NAMESPACE=istio-system", "POD_NAME=istiod", "SERVICE_ACCOUNT=istiod", "REVISION=default", "CLUSTER_ID=Kubernetes",
	"PILOT_CERT_PROVIDER=istiod",
	"INJECTION_WEBHOOK_CONFIG_NAME=", "VALIDATION_WEBHOOK_CONFIG_NAME=",
}

// Istiod is a running istiod.
type Istiod struct {
	*machine.Process
	// GRPC is its plaintext xDS port, Monitoring that of its metrics.
	GRPC, Monitoring string
}

// StartIstiod runs the pilot-discovery of a directory on the given processors, with more variables in its environment,
// and waits until it is ready.
func (a *API) StartIstiod(ctx context.Context, bin, dir string, on *unix.CPUSet, env ...string) (*Istiod, error) {
	at, err := machine.FreePorts(5)
	if err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "istiod.log")
	p, err := machine.Start(process.Program{
		Name: "istiod", Path: filepath.Join(bin, "pilot-discovery"), Env: append(slices.Clone(istiodEnv), env...), Stdout: log, Stderr: log,
		Args: []string{
			"discovery", "--kubeconfig", a.Kubeconfig, "--httpAddr", at[0], "--grpcAddr", at[1], "--secureGRPCAddr", at[2], "--monitoringAddr",
			at[3],
			"--httpsAddr", at[4], "--ctrlz_port", "0", "--domain", domain, "--keepaliveMaxServerConnectionAge", "24h",
		},
		Change: func(cmd *exec.Cmd) error { cmd.Dir = dir; return nil },
	}, on)
	if err != nil {
		return nil, err
	}
	client := probe.Client(nil)
	i := &Istiod{p, at[1], at[3]}
	if err := p.Until(ctx, startWithin, func() error { return probe.Ready(ctx, client, "http://"+at[0]+"/ready") }); err != nil {
		p.Stop()
		return nil, err
	}
	return i, nil
}
