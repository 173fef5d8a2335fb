package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"fairlead.dev/tests/internal/kubeapi"
)

// cniPlugins is where Debian's package puts them.
const cniPlugins = "/usr/lib/cni"

// packages lists what the cluster runs of this machine, by Debian package. `.ci/run` installs them.
var packages = map[string][]string{
	"containerd":                  {"containerd", "containerd-shim-runc-v2", "ctr"},
	"runc":                        {"runc"},
	"iptables":                    {"iptables", "ip6tables"},
	"nftables":                    {"nft"},
	"mount":                       {"mount", "umount"},
	"containernetworking-plugins": {cniPlugins + "/bridge", cniPlugins + "/host-local", cniPlugins + "/loopback", cniPlugins + "/portmap"},
}

// components are programs of KUBE_BIN.
var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns",
	"kubectl"}

func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the cluster needs root: it makes namespaces, mounts and control groups; run this as root, or give " +
			"`make test-cluster` the KUBECONFIG of another cluster")
	}
	return nil
}

// CheckMachine says what a cluster needs of this machine and does not find, all at once.
func CheckMachine() error {
	if err := checkRoot(); err != nil {
		return err
	}
	var missing []string
	for name, programs := range packages {
		for _, p := range programs {
			if _, err := exec.LookPath(p); err != nil {
				missing = append(missing, name)
				break
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	list := strings.Join(missing, " ")
	return fmt.Errorf("the cluster needs programs of the Debian packages %s: apt-get install --no-install-recommends %s", list, list)
}

// check is CheckMachine, and looks for the programs that are built.
func check() error {
	if err := CheckMachine(); err != nil {
		return err
	}
	for _, c := range components {
		if _, err := kubeapi.Program(c); err != nil {
			return err
		}
	}
	return nil
}
