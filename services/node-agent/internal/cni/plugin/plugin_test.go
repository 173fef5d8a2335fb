package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/services/node-agent/internal/redirect"
)

const podsArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=apps;K8S_POD_NAME=web-1;K8S_POD_UID=u1;K8S_POD_INFRA_CONTAINER_ID=c"

var options = redirect.RawOptions{
	Mode: "REDIRECT", OutboundPort: "15001", InboundPort: "15006", TunnelPort: "15008", DNSPort: "15053", ProbePort: "15002", Backend: "auto",
	ProxyUID: "1337", ProxyGID: "1337", InboundPorts: "*", OutboundRanges: "*", TProxyMark: "1337", TProxyTable: "133",
}

// agent answers one request on a socket, and returns its path and what it was asked.
func agent(t *testing.T, answer func(Request) Answer) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cni") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			var r Request
			if err := json.NewDecoder(conn).Decode(&r); err != nil {
				t.Error(err)
			}
			if err := json.NewEncoder(conn).Encode(answer(r)); err != nil {
				t.Error(err)
			}
			conn.Close()
		}
	}()
	return socket
}

func call(socket, namespace, args string) *skel.CmdArgs {
	return &skel.CmdArgs{Args: args, Netns: namespace, StdinData: fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "n", "type": "fairlead-cni", "socket": %q, "excludeNamespaces": ["kube-system"], "agentNamespace": "istio-system",
		"agentName": "fairlead-cni-node", "runtimeConfig": {"dns": {"Servers": ["10.96.0.10", "none"]}},
		"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}], "x": {"y": [1]}}}`, socket)}
}

// output runs f, and returns what it writes to the standard output.
func output(t *testing.T, f func() error) (string, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stdout
	os.Stdout = w
	err = f()
	os.Stdout = was
	w.Close()
	var out strings.Builder
	if _, copyErr := fmt.Fscan(r, new(string)); copyErr == nil {
		out.WriteString("something")
	}
	return out.String(), err
}

func TestAddWritesTheRulesIntoThePodsNamespace(t *testing.T) {
	if userns.Again(t, "unshare", "nft", "nsenter") {
		return
	}
	namespaces := make(chan string)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		namespaces <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		<-t.Context().Done()
	}()
	namespace := <-namespaces
	var asked Request
	socket := agent(t, func(r Request) Answer { asked = r; return Answer{Redirect: true, Options: options} })
	if err := check(call(socket, namespace, podsArgs)); err == nil || !strings.Contains(err.Error(), redirect.ErrUnverified.Error()) {
		t.Errorf("CHECK before ADD: %v", err)
	}
	if out, err := output(t, func() error { return add(call(socket, namespace, podsArgs)) }); err != nil || out == "" {
		t.Fatalf("ADD: %q, %v", out, err)
	}
	rules, err := exec.CommandContext(t.Context(), "nsenter", "--net="+namespace, "nft", "list", "ruleset").CombinedOutput()
	if err != nil || !strings.Contains(string(rules), "redirect to :15001") {
		t.Errorf("the namespace has the rules %s, %v", rules, err)
	}
	if asked.Namespace != "apps" || asked.Name != "web-1" || asked.UID != "u1" || fmt.Sprint(asked.Nameservers) != "[10.96.0.10]" {
		t.Errorf("the agent is asked about %+v", asked)
	}
	if err := check(call(socket, namespace, podsArgs)); err != nil {
		t.Errorf("CHECK after ADD: %v", err)
	}
	if err := none(call(socket, namespace, podsArgs)); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

func TestTheResultIsThatOfThePluginsBefore(t *testing.T) {
	in, err := parse(call("/s", "", podsArgs).StdinData)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(in.result()), `{"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}], "x": {"y": [1]}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if in, err = parse([]byte(`{"cniVersion": "1.1.0", "socket": "/s"}`)); err != nil || string(in.result()) != `{"cniVersion":"1.1.0"}` {
		t.Errorf("without plugins before: %s, %v", in.result(), err)
	}
}

func TestPodsThatAreLeftAlone(t *testing.T) {
	left := agent(t, func(Request) Answer { return Answer{} })
	for name, args := range map[string]*skel.CmdArgs{
		"one without a sidecar":        call(left, "/none", podsArgs),
		"one of an excluded namespace": call("/none", "/none", strings.Replace(podsArgs, "=apps", "=kube-system", 1)),
		"the agent": call("/none", "/none",
			"IgnoreUnknown=1;K8S_POD_NAMESPACE=istio-system;K8S_POD_NAME=fairlead-cni-node-x7k2p"),
		"a container that is of no Pod": call("/none", "/none", ""),
	} {
		if out, err := output(t, func() error { return add(args) }); err != nil || out == "" {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

func TestAddFailsThePod(t *testing.T) {
	wrong := options
	wrong.Mode = "SOMETHING"
	for name, tc := range map[string]struct {
		args *skel.CmdArgs
		want string
	}{
		"the agent is away": {call(filepath.Join(t.TempDir(), "s"), "/none", podsArgs),
			"is the Pod of DaemonSet istio-system/fairlead-cni-node running on this node?"},
		"the agent refuses": {call(agent(t, func(Request) Answer { return Answer{Error: "annotation x: want y"} }), "/none", podsArgs),
			"apps/web-1 cannot be redirected: annotation x: want y"},
		"options that are wrong": {call(agent(t, func(Request) Answer { return Answer{Redirect: true, Options: wrong} }), "/none", podsArgs),
			"SOMETHING"},
		"no such namespace": {call(agent(t, func(Request) Answer { return Answer{Redirect: true, Options: options} }), "/none", podsArgs),
			"/none"},
		"arguments that are wrong":  {call("/none", "/none", "K8S_POD_NAME"), "CNI_ARGS"},
		"a configuration of others": {&skel.CmdArgs{StdinData: []byte(`{"type": "bridge"}`)}, "socket"},
		"no configuration":          {&skel.CmdArgs{StdinData: []byte(`[`)}, "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := onlyError(add(tc.args))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// onlyError is an error as the runtime gets it.
func onlyError(err error) error {
	if e, ok := errors.AsType[*types.Error](err); ok {
		return errors.New(e.Msg + " " + e.Details)
	}
	return err
}

func TestStatusSaysWhetherTheAgentAnswers(t *testing.T) {
	if err := status(call(agent(t, func(Request) Answer { return Answer{} }), "", "")); err != nil {
		t.Error(err)
	}
	e, ok := errors.AsType[*types.Error](status(call(filepath.Join(t.TempDir(), "s"), "", "")))
	if !ok || e.Code != errUnavailable {
		t.Errorf("without an agent: %v", e)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(call("/s", "", podsArgs).StdinData, podsArgs)
	f.Add([]byte(`{"socket": "/s", "prevResult": null}`), "K8S_POD_NAME=")
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		in, err := parse(stdin)
		if err != nil {
			return
		}
		if !json.Valid(in.result()) {
			t.Errorf("the result %q is not JSON", in.result())
		}
		in.Socket = "/none/s"
		in.ExcludeNamespaces = append(in.ExcludeNamespaces, "apps")
		if err := onRules(t.Context(), in, &skel.CmdArgs{Args: podsArgs}, nil); err != nil {
			t.Error(err)
		}
		var pod podArgs
		_ = types.LoadArgs(args, &pod)
	})
}
