package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
)

// deployment reads what deploy/ says of a service.
func deployment(t *testing.T, service string) corev1.Container {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../../deploy/kustomize/base", service, "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(content, &d); err != nil {
		t.Fatal(err)
	}
	c := d.Spec.Template.Spec.Containers
	if len(c) != 1 || c[0].Resources.Limits.Memory().IsZero() {
		t.Fatalf("Deployment %s does not have one container with a memory limit", service)
	}
	return c[0]
}

// limits are the memory limits of the services, in bytes.
func limits(t *testing.T) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, service := range []string{"ca", "config-watcher", "xds-server"} {
		c := deployment(t, service)
		out[service] = c.Resources.Limits.Memory().Value()
	}
	return out
}

// collectorLimit is the variable GOMEMLIMIT of a container, as the kubelet fills it in.
func collectorLimit(t *testing.T, c corev1.Container) string {
	t.Helper()
	var variables []string
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.ResourceFieldRef != nil {
			divisor := max(e.ValueFrom.ResourceFieldRef.Divisor.Value(), 1)
			value = strconv.FormatInt((c.Resources.Limits.Memory().Value()+divisor-1)/divisor, 10)
		}
		value = strings.NewReplacer(variables...).Replace(value)
		if e.Name == "GOMEMLIMIT" {
			return e.Name + "=" + value
		}
		variables = append(variables, "$("+e.Name+")", value)
	}
	t.Fatalf("container %s has no GOMEMLIMIT", c.Name)
	return ""
}

// resident is the resident memory of a process, in bytes.
func resident(pid int) (int64, error) {
	status, err := testkit.ProcessStatus(pid)
	if err == nil && status.VmRSS == 0 {
		err = fmt.Errorf("process %d has no resident memory", pid) // it has ended and was not waited for
	}
	return int64(status.VmRSS), err
}
