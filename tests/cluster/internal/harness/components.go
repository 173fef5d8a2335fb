package harness

import (
	"fmt"
	"net/netip"

	"fairlead.dev/tests/internal/kubeapi"
)

// containerd's socket, in the node's own /run.
const containerdSocket = "/run/containerd/containerd.sock"

// PauseImage and DNSImage are the images that the cluster itself runs. The archives that Up gets hold them.
const (
	PauseImage = "fairlead/pause:cluster"
	DNSImage   = "fairlead/coredns:cluster"
)

// plane says how etcd and the API server run.
func plane(d Dir, at addresses) *kubeapi.ControlPlane {
	return &kubeapi.ControlPlane{
		Dir: string(d), Etcd: etcdAddress, EtcdPeer: etcdPeer, API: at.api(), Services: at.services,
		Addresses: []netip.Addr{at.node},
	}
}

// apiServerArgs are those of the API server besides kubeapi's: it knows a kubelet.
func apiServerArgs(c *kubeapi.ControlPlane) []string {
	return []string{
		"--bind-address=0.0.0.0", "--advertise-address=" + c.API.Addr().String(), "--enable-admission-plugins=NodeRestriction",
		"--kubelet-certificate-authority=" + c.File("ca.crt"), "--kubelet-client-certificate=" + c.File("apiserver-kubelet.crt"),
		"--kubelet-client-key=" + c.File("apiserver-kubelet.key"), "--kubelet-preferred-address-types=InternalIP",
	}
}

func controllerManagerArgs(c *kubeapi.ControlPlane, pods netip.Prefix, kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig, "--use-service-account-credentials", "--root-ca-file=" + c.File("ca.crt"),
		"--service-account-private-key-file=" + c.File("service-accounts.key"),
		"--cluster-signing-cert-file=" + c.File("ca.crt"), "--cluster-signing-key-file=" + c.File("ca.key"),
		"--allocate-node-cidrs", "--cluster-cidr=" + pods.String(), "--service-cluster-ip-range=" + c.Services.String(),
		"--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400",
	}
}

func schedulerArgs(kubeconfig string) []string {
	return []string{"--kubeconfig=" + kubeconfig, "--leader-elect=false"}
}

// configurations are the files of containerd, kubelet and kube-proxy.
func configurations(m *member) map[string]string {
	return map[string]string{
		// Without restrict_oom_score_adj runc dies where the machine withholds CAP_SYS_RESOURCE.
		"containerd.toml": fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`, m.Path("containerd"), containerdSocket, "docker.io/"+PauseImage, m.CNI("bin"), m.CNI("net.d")),

		// Images cannot be pulled again, so none is ever removed for its space. A hundredth of a large disk would be
		// gigabytes.
		"kubelet.yaml": fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %q}
authorization: {mode: Webhook}
tlsCertFile: %q
tlsPrivateKeyFile: %q
containerRuntimeEndpoint: unix://%s
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDomain: %s
clusterDNS: [%q]
resolvConf: %q
volumePluginDir: %q
imageGCHighThresholdPercent: 100
imageMinimumGCAge: 8760h
evictionHard: {memory.available: 50Mi, nodefs.available: 200Mi, imagefs.available: 200Mi, nodefs.inodesFree: 1%%}
serializeImagePulls: false
syncFrequency: 5s
`, m.plane.File("ca.crt"), m.plane.File(m.certificate()+".crt"), m.plane.File(m.certificate()+".key"), containerdSocket, m.Cgroup(), domain,
			m.addresses.dns, m.Path("resolv.conf"), m.Path("volume-plugins")),

		// The connection tracking limits are the machine's, not the network namespace's.
		"kube-proxy.yaml": fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %q}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 100ms}
linux: {oomScoreAdj: 0}
`, m.name, m.addresses.pods, m.proxy),
	}
}

// writeCNI writes the configuration of CNI, with which a node becomes ready: its pods have addresses of a range.
func (m *member) writeCNI(pods netip.Prefix) error {
	return writeFile(m.CNI("net.d", "10-cluster.conflist"), fmt.Sprintf(`{
  "cniVersion": "0.4.0", "name": "cluster", "plugins": [
    {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, pods))
}

func kubeletArgs(m *member) []string {
	return []string{
		"--config=" + m.Path("kubelet.yaml"), "--kubeconfig=" + m.kubelet, "--hostname-override=" + m.name,
		"--node-ip=" + m.ip.String(), "--node-labels=topology.kubernetes.io/region=region-1,topology.kubernetes.io/zone=" + m.zone,
	}
}
