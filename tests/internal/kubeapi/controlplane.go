package kubeapi

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ControlPlane says how etcd and the API server run: Start does it for a test, tests/cluster on its node.
type ControlPlane struct {
	// Dir gets the directory pki, kubeconfigs and etcd's data.
	Dir string
	// Etcd, EtcdPeer and API are where they listen.
	Etcd, EtcdPeer, API netip.AddrPort
	// Addresses are further ones that clients find the API server at.
	Addresses []netip.Addr
	// Services is the range of ClusterIPs; its first address is the API server's.
	Services netip.Prefix
	// TokenIssuer is of the tokens of service accounts; "" means Issuer.
	TokenIssuer string

	clients *Authority
}

// File returns the path of a file of pki.
func (c *ControlPlane) File(name string) string { return filepath.Join(c.Dir, "pki", name) }

// URL is where this machine finds the API server.
func (c *ControlPlane) URL() string { return "https://" + c.API.String() }

// WritePKI makes new authorities, keys and certificates, in Dir/pki. The files are, without their endings: ca (clients
// and servers of Kubernetes), etcd-ca, front-proxy-ca, apiserver, apiserver-etcd, apiserver-kubelet, front-proxy, etcd,
// and service-accounts.
func (c *ControlPlane) WritePKI() error {
	dir := filepath.Join(c.Dir, "pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	etcd, err := NewAuthority(dir, "etcd-ca")
	if err != nil {
		return err
	}
	front, err := NewAuthority(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	if c.clients, err = NewAuthority(dir, "ca"); err != nil {
		return err
	}
	names := Names{DNS: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}}
	for _, ip := range append([]netip.Addr{c.API.Addr(), c.Services.Addr().Next(), netip.MustParseAddr("127.0.0.1")}, c.Addresses...) {
		names.IP = append(names.IP, ip.AsSlice())
	}
	for _, issue := range []func() error{
		func() error {
			return etcd.Issue(dir, "etcd", "etcd", nil, Names{DNS: []string{"localhost"}, IP: []net.IP{c.Etcd.Addr().AsSlice()}})
		},
		func() error { return etcd.Issue(dir, "apiserver-etcd", "kube-apiserver", nil, Names{}) },
		func() error { return front.Issue(dir, "front-proxy", "front-proxy-client", nil, Names{}) },
		func() error { return c.clients.Issue(dir, "apiserver", "kube-apiserver", nil, names) },
		func() error { return c.clients.Issue(dir, "apiserver-kubelet", KubeletClient, nil, Names{}) },
		func() error { return newTokenKey(dir, "service-accounts") },
	} {
		if err := issue(); err != nil {
			return err
		}
	}
	return nil
}

// KubeletClient is the user that the API server is to the kubelet.
const KubeletClient = "kube-apiserver-kubelet-client"

// ReadPKI finds the authority ca of an earlier WritePKI, perhaps of another process.
func (c *ControlPlane) ReadPKI() (err error) {
	c.clients, err = ReadAuthority(filepath.Join(c.Dir, "pki"), "ca")
	return err
}

// Issue writes a certificate of the authority ca into pki; WritePKI or ReadPKI was called.
func (c *ControlPlane) Issue(file, user string, groups []string, serves Names) error {
	return c.clients.Issue(filepath.Join(c.Dir, "pki"), file, user, groups, serves)
}

// UserKubeconfig writes the kubeconfig of a user with a certificate of its own to Dir/NAME.kubeconfig and returns the
// path. All that it refers to is inside.
func (c *ControlPlane) UserKubeconfig(name, user string, groups ...string) (string, error) {
	if err := c.Issue(name, user, groups, Names{}); err != nil {
		return "", err
	}
	cert, err := os.ReadFile(c.File(name + ".crt"))
	if err != nil {
		return "", err
	}
	key, err := os.ReadFile(c.File(name + ".key"))
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(name, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// writeKubeconfig writes Dir/NAME.kubeconfig.
func (c *ControlPlane) writeKubeconfig(name string, as *clientcmdapi.AuthInfo) (string, error) {
	path := filepath.Join(c.Dir, name+".kubeconfig")
	return path, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: c.URL(), CertificateAuthorityData: c.clients.PEM}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: as},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: name}},
		CurrentContext: "test",
	}, path)
}

// EtcdArgs are the arguments of etcd.
func (c *ControlPlane) EtcdArgs() []string {
	client, peer := "https://"+c.Etcd.String(), "http://"+c.EtcdPeer.String()
	return []string{
		"--name=etcd", "--data-dir=" + filepath.Join(c.Dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=etcd=" + peer,
		"--client-cert-auth", "--trusted-ca-file=" + c.File("etcd-ca.crt"), "--cert-file=" + c.File("etcd.crt"),
		"--key-file=" + c.File("etcd.key"),
	}
}

// Issuer is of the tokens of service accounts, unless a ControlPlane says another one.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// AloneArgs are the arguments of a kube-apiserver without nodes and controllers.
func (c *ControlPlane) AloneArgs() []string {
	return append(c.APIServerArgs(),
		"--endpoint-reconciler-type=none",            // the endpoints of the Service kubernetes may not be loopback addresses
		"--disable-admission-plugins=ServiceAccount", // no controller makes service accounts
		"--advertise-address="+c.API.Addr().String(),
		"--shutdown-watch-termination-grace-period=1s") // else its end waits a minute for watches
}

// APIServerArgs are the arguments of kube-apiserver.
func (c *ControlPlane) APIServerArgs() []string {
	issuer := cmp.Or(c.TokenIssuer, Issuer)
	return []string{
		"--bind-address=" + c.API.Addr().String(), fmt.Sprintf("--secure-port=%d", c.API.Port()),
		"--etcd-servers=https://" + c.Etcd.String(), "--etcd-cafile=" + c.File("etcd-ca.crt"),
		"--etcd-certfile=" + c.File("apiserver-etcd.crt"), "--etcd-keyfile=" + c.File("apiserver-etcd.key"),
		"--tls-cert-file=" + c.File("apiserver.crt"), "--tls-private-key-file=" + c.File("apiserver.key"),
		"--client-ca-file=" + c.File("ca.crt"), "--authorization-mode=Node,RBAC", "--anonymous-auth=true",
		"--service-cluster-ip-range=" + c.Services.String(), "--allow-privileged=true",
		"--service-account-issuer=" + issuer, "--service-account-jwks-uri=" + issuer + "/openid/v1/jwks",
		"--service-account-key-file=" + c.File("service-accounts.pub"), "--service-account-signing-key-file=" + c.File("service-accounts.key"),
		"--requestheader-client-ca-file=" + c.File("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.File("front-proxy.crt"), "--proxy-client-key-file=" + c.File("front-proxy.key"),
	}
}
