package manifests_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// readsSecrets lists the Roles that grant Secrets of the namespace without naming them.
func readsSecrets(objects []runtime.Object) (names []string) {
	for _, o := range objects {
		r, ok := o.(*rbacv1.Role)
		if !ok || !strings.HasPrefix(r.Name, "fairlead-config-watcher") {
			continue
		}
		for _, rule := range r.Rules {
			if slices.Contains(rule.Resources, "secrets") && len(rule.ResourceNames) == 0 {
				names = append(names, r.Name+" "+strings.Join(rule.Verbs, ","))
			}
		}
	}
	return names
}

// watcher is the container of config-watcher, and the Pod's volumes.
func watcher(t *testing.T, objects []runtime.Object) (corev1.Container, []corev1.Volume) {
	t.Helper()
	for _, o := range objects {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if c.Name == "config-watcher" {
				return c, d.Spec.Template.Spec.Volumes
			}
		}
	}
	t.Fatal("there is no container config-watcher")
	return corev1.Container{}, nil
}

// TestRegistriesOfAnInstallation: an installation's values reach config-watcher's flags, and the right on Secrets goes
// with the last reason for it.
func TestRegistriesOfAnInstallation(t *testing.T) {
	pkg := open(t)
	const role = "fairlead-config-watcher-remote-clusters get,list,watch"
	for name, tc := range map[string]struct {
		profile, values string
		args, rights    []string
	}{
		"as it comes":       {"minimal", "{}", nil, []string{role}},
		"in one Pod":        {"compact", "{}", nil, []string{role}},
		"no registries":     {"minimal", "{registries: false}", []string{"--registries=false"}, []string{role}},
		"no other clusters": {"minimal", "{remoteClusters: false}", []string{"--remote-clusters=false"}, []string{role}},
		"neither":           {"minimal", "{registries: false, remoteClusters: false}", []string{"--remote-clusters=false", "--registries=false"}, nil},
		"neither, in one Pod": {"compact", "{registries: false, remoteClusters: false}",
			[]string{"--remote-clusters=false", "--registries=false"}, nil},
		"times": {"minimal", "{remoteClusterStaleAfter: 1h, registryTimeout: 1m}",
			[]string{"--remote-cluster-stale-after=1h", "--registry-timeout=1m"}, []string{role}},
		"addresses": {"compact", "{registryAllowAddresses: [127.0.0.1, 169.254.0.0/16]}",
			[]string{"--registry-allow-addresses=127.0.0.1", "--registry-allow-addresses=169.254.0.0/16"}, []string{role}},
		"files": {"minimal", "{registrySecret: consul, registries: false, remoteClusters: false}",
			[]string{"--remote-clusters=false", "--registries=false", "--registry-dir=/etc/fairlead/registries"}, nil},
		"files, in one Pod": {"compact", "{registrySecret: consul}", []string{"--registry-dir=/etc/fairlead/registries"}, []string{role}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := installed(t, pkg, tc.profile, "{values: {configWatcher: "+tc.values+"}}")
			container, volumes := watcher(t, objects)
			args := slices.DeleteFunc(slices.Clone(container.Args), func(a string) bool {
				return !strings.HasPrefix(a, "--regist") && !strings.HasPrefix(a, "--remote-cluster")
			})
			if !slices.Equal(args, tc.args) {
				t.Errorf("flags are %q, want %q", args, tc.args)
			}
			if got := readsSecrets(objects); !slices.Equal(got, tc.rights) {
				t.Errorf("rights on Secrets are %q, want %q", got, tc.rights)
			}
			mounted := slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.MountPath == "/etc/fairlead/registries" && m.ReadOnly && slices.ContainsFunc(volumes, func(v corev1.Volume) bool {
					return v.Name == m.Name && v.Secret != nil && v.Secret.SecretName == "consul"
				})
			})
			if want := strings.Contains(tc.values, "registrySecret"); mounted != want {
				t.Errorf("the Secret is mounted: %v, want %v", mounted, want)
			}
		})
	}
}

// TestConsulAtOtherPorts: registryEgress opens config-watcher's NetworkPolicy, and no other.
func TestConsulAtOtherPorts(t *testing.T) {
	pkg := open(t)
	const value = "{registryEgress: [{to: [{namespaceSelector: {}}], ports: [{protocol: TCP, port: 8080}]}]}"
	for profile, policy := range map[string]string{"minimal": "config-watcher", "compact": "fairlead"} {
		var open []string
		for _, o := range installed(t, pkg, profile, "{values: {configWatcher: "+value+"}}") {
			if p, ok := o.(*networkingv1.NetworkPolicy); ok && slices.ContainsFunc(p.Spec.Egress, leadsTo8080) {
				open = append(open, p.Name)
			}
		}
		if !slices.Equal(open, []string{policy}) {
			t.Errorf("profile %s: port 8080 is open for %q, want %s alone", profile, open, policy)
		}
	}
}
