package harness

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctls are those of the whole machine that the kubelet wants at a value and would set. It finds the value in a file
// that lies over each, and leaves the machine's alone.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mounts prepares the node's file system, in its own mount namespace; names are resolved at an address.
func mounts(d Dir, dns netip.Addr) error {
	// Volumes that are mounted in a pod must be seen by the kubelet and the other way round.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	for name, value := range sysctls {
		over := d.Path("sysctl", strings.ReplaceAll(name, "/", "."))
		if err := writeFile(over, value+"\n"); err != nil {
			return err
		}
		if err := bind(over, "/proc/sys/"+name); err != nil {
			return err
		}
	}
	// The kubelet's directories for device plugins and pods' logs have fixed places, /var/lib/kubelet and /var/log, as
	// has what CNI plugins keep in /var/lib/cni. Nothing else in /var/lib matters to a component.
	for _, dir := range []string{"/var/log", "/var/lib"} {
		if err := os.MkdirAll(d.Path("node", dir), 0o755); err != nil {
			return err
		}
		if err := bind(d.Path("node", dir), dir); err != nil {
			return err
		}
	}
	resolv, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		return err
	}
	// Sockets and the namespaces of pods.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := writeFile(d.Path("resolv.conf"), "nameserver "+dns.String()+"\nsearch svc."+domain+" "+domain+
		"\noptions ndots:5\n"); err != nil {
		return err
	}
	if strings.HasPrefix(resolv, "/run/") {
		if err := writeFile(resolv, ""); err != nil {
			return err
		}
	}
	return bind(d.Path("resolv.conf"), resolv)
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	return nil
}

func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
