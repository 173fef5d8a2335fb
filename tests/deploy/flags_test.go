package deploy

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// binary is a service's program: that in $BIN_DIR, else a freshly built one.
func binary(t *testing.T, name string) string {
	t.Helper()
	of := name
	if name == "injector" {
		of, name = "installer", "fairlead-injector"
	}
	if dir := os.Getenv("BIN_DIR"); dir != "" {
		return filepath.Join(dir, name)
	}
	out := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, "fairlead.dev/services/"+of+"/cmd/"+name)
	cmd.Dir = "../.."
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

var variable = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// arguments are a container's, with its variables put in as the kubelet does.
func arguments(t *testing.T, objects []runtime.Object, c corev1.Container) []string {
	t.Helper()
	values := map[string]string{}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			values[e.Name] = e.Value
		case e.ValueFrom.ConfigMapKeyRef != nil:
			if _, made := madeByTheCA[e.ValueFrom.ConfigMapKeyRef.Name]; made {
				values[e.Name] = "https://kubernetes.default.svc.cluster.local"
			}
		default:
			values[e.Name] = "from-the-pod"
		}
	}
	var args []string
	for _, a := range c.Args {
		args = append(args, variable.ReplaceAllStringFunc(a, func(match string) string {
			value := values[variable.FindStringSubmatch(match)[1]]
			if value == "" {
				t.Errorf("%s: no value for %s", a, match)
			}
			return value
		}))
	}
	return args
}

// The programs accept the flags and the values that the Deployments give them. A last flag is wrong on purpose, so that
// they check all the others, complain about that one alone, and touch nothing.
func TestBinariesAcceptTheirFlags(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		t.Run(name, func(t *testing.T) {
			_, c := service(t, objects, name)
			if len(c.Command) > 0 {
				t.Errorf("command %v: the image's entry point is meant", c.Command)
			}
			path := binary(t, name)
			help, err := exec.CommandContext(t.Context(), path, "--help").Output()
			if err != nil {
				t.Fatal(err)
			}
			args := arguments(t, objects, c)
			for _, a := range args {
				flag, _, _ := strings.Cut(a, "=")
				if !regexp.MustCompile(`(?m)^\s+` + regexp.QuoteMeta(flag) + ` `).Match(help) {
					t.Errorf("%s has no flag %s", name, flag)
				}
			}
			var stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), path, append(args, "--otlp-endpoint=wrong://on-purpose")...)
			cmd.Stderr = &stderr
			err = cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.HasPrefix(stderr.String(), filepath.Base(path)+": --otlp-endpoint:") {
				t.Errorf("ended with %v and %q, want exit code 2 and a complaint about --otlp-endpoint alone", err, stderr.String())
			}
		})
	}
}

// Files that flags name are on a mount, and ports that flags name are the container's.
func TestFlagsFitTheContainer(t *testing.T) {
	objects := mesh(t)
	for _, name := range services {
		_, c := service(t, objects, name)
		for _, a := range arguments(t, objects, c) {
			flag, value, _ := strings.Cut(a, "=")
			if strings.HasPrefix(value, "/") && !onMount(c, value) {
				t.Errorf("%s: %s is on no mount", name, a)
			}
			if strings.HasSuffix(flag, "-address") && strings.HasPrefix(value, ":") && !hasPort(c, value[1:]) {
				t.Errorf("%s: %s is no port of the container", name, a)
			}
		}
	}
}

func onMount(c corev1.Container, path string) bool {
	for _, m := range c.VolumeMounts {
		if path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/") {
			return true
		}
	}
	return false
}

func hasPort(c corev1.Container, port string) bool {
	for _, p := range c.Ports {
		if port == strconv.Itoa(int(p.ContainerPort)) {
			return true
		}
	}
	return false
}
