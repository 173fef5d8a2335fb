// Package plugin is the CNI plugin fairlead-cni, which the container runtime runs for every Pod of the node, after the
// plugins that make its network. It asks the node's agent ("node-agent cni", package cni) on a unix socket whether the
// Pod has a sidecar, and writes the rules into the Pod's network namespace. Whatever fails, fails the Pod: the runtime
// tries again. Command fairlead-cni calls Main.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"fairlead.dev/services/node-agent/internal/redirect"
)

// Name is the plugin's type in CNI configurations, and the name of its program.
const Name = "fairlead-cni"

// within is how long one call may take. Runtimes wait longer.
const within = 30 * time.Second

// errUnavailable is the error code of CNI's STATUS for a plugin that cannot add containers now.
const errUnavailable = 50

// Config is the plugin's entry in a CNI configuration. Package install writes it.
type Config struct {
	CNIVersion string `json:"cniVersion,omitempty"`
	Name       string `json:"name,omitempty"`
	Type       string `json:"type"`
	// Capabilities has the runtime send RuntimeConfig.
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	// Socket is where the agent listens.
	Socket string `json:"socket"`
	// ExcludeNamespaces are namespaces whose Pods are left alone.
	ExcludeNamespaces []string `json:"excludeNamespaces,omitempty"`
	// AgentNamespace and AgentName are those of the agent's DaemonSet, whose Pods cannot wait for themselves.
	AgentNamespace string `json:"agentNamespace,omitempty"`
	AgentName      string `json:"agentName,omitempty"`
}

// input is what the runtime sends: the Config and more.
type input struct {
	Config
	RuntimeConfig struct {
		DNS struct{ Servers []string } `json:"dns"`
	} `json:"runtimeConfig"`
	PrevResult json.RawMessage `json:"prevResult"`
}

// podArgs are the arguments that Kubernetes' runtimes send. The library finds fields by these names.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID types.UnmarshallableString
}

// Main runs the plugin as CNI's environment variables say, and exits.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: none, GC: none, Status: status}, version.All,
		Name+": sends the connections of Pods with a sidecar through it")
}

// none does nothing: the rules end with the network namespace.
func none(*skel.CmdArgs) error { return nil }

func add(args *skel.CmdArgs) error {
	in, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err = onRules(ctx, in, args, func(o *redirect.Options) error {
		_, err := redirect.Apply(ctx, o, redirect.Exec)
		return err
	})
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(in.result())
	return err
}

func check(args *skel.CmdArgs) error {
	in, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return onRules(ctx, in, args, func(o *redirect.Options) error { return redirect.Check(ctx, o, redirect.Exec) })
}

func status(args *skel.CmdArgs) error {
	in, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if _, err := Ask(ctx, in.Socket, Request{}); err != nil {
		return types.NewError(errUnavailable, "the node's agent does not answer", err.Error())
	}
	return nil
}

// parse reads what the runtime sends.
func parse(stdin []byte) (*input, error) {
	in := &input{}
	if err := json.Unmarshal(stdin, in); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration is not JSON of "+Name, err.Error())
	}
	if in.Socket == "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "socket: want the path of the socket of node-agent cni", "")
	}
	return in, nil
}

// result is the result of the plugins before, unchanged.
func (in *input) result() []byte {
	if len(in.PrevResult) == 0 || string(in.PrevResult) == "null" {
		empty, _ := json.Marshal(map[string]string{"cniVersion": in.CNIVersion})
		return empty
	}
	return in.PrevResult
}

// onRules calls f in the Pod's network namespace with the options of its rules, if it shall have any.
func onRules(ctx context.Context, in *input, args *skel.CmdArgs, f func(*redirect.Options) error) error {
	var pod podArgs
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(), "")
	}
	request := Request{Namespace: string(pod.K8S_POD_NAMESPACE), Name: string(pod.K8S_POD_NAME), UID: string(pod.K8S_POD_UID)}
	if request.Namespace == "" || request.Name == "" || in.excludes(request) {
		return nil
	}
	request.Nameservers = Nameservers(in.RuntimeConfig.DNS.Servers)
	failed := func(err error) error {
		return types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("traffic of Pod %s/%s cannot be redirected: %v", request.Namespace, request.Name, err), "")
	}
	answer, err := Ask(ctx, in.Socket, request)
	switch {
	case err != nil:
		return failed(fmt.Errorf("%w: is the Pod of DaemonSet %s/%s running on this node?", err, in.AgentNamespace, in.AgentName))
	case answer.Error != "":
		return failed(errors.New(answer.Error))
	case !answer.Redirect:
		return nil
	}
	options, err := redirect.Parse(answer.Options)
	if err != nil {
		return failed(err)
	}
	if err := redirect.In(args.Netns, func() error { return f(options) }); err != nil {
		return failed(err)
	}
	return nil
}

// excludes reports whether a Pod is left alone whatever the agent says.
func (in *input) excludes(r Request) bool {
	return slices.Contains(in.ExcludeNamespaces, r.Namespace) ||
		in.AgentName != "" && r.Namespace == in.AgentNamespace && strings.HasPrefix(r.Name, in.AgentName+"-")
}
