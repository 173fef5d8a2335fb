package caops

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/caapi"
)

// maxReason is how many bytes of a reason the ca takes.
const maxReason = 256

// Flags are those of `fairlead ca rotate` and `fairlead ca swap`.
type Flags struct {
	// Swap is true for the latter.
	Swap bool
	// To is the signer file's name, Reason why a rotation begins.
	To, Reason                     string
	Compromised                    bool
	Pause, Resume, Abort, Rollback bool
	Accept                         []string
	Wait                           bool
}

// steering lists the flags that are set of those that steer a rotation under way.
func (f Flags) steering() (set []string) {
	for _, flag := range []struct {
		action string
		on     bool
	}{
		{caapi.Pause, f.Pause}, {caapi.Resume, f.Resume}, {caapi.Abort, f.Abort}, {caapi.Rollback, f.Rollback}, {caapi.Accept, len(f.Accept) > 0},
	} {
		if flag.on {
			set = append(set, flag.action)
		}
	}
	return set
}

// Check returns an error of wrong usage for flags that do not go together.
func (f Flags) Check() error {
	steering := f.steering()
	with := lists.Map(steering, func(action string) string { return "--" + action })
	for _, flag := range []struct {
		name string
		on   bool
	}{{"--to", f.To != ""}, {"--reason", f.Reason != ""}, {"--compromised", f.Compromised}} {
		if flag.on {
			with = append(with, flag.name)
		}
	}
	switch {
	case len(steering) > 0 && len(with) > 1:
		return process.Usagef("%s exclude each other: --pause, --resume, --abort, --rollback and --accept steer the rotation that is under way, "+
			"one of them at a time", strings.Join(with, " and "))
	case f.Pause && f.Wait:
		return process.Usage(errors.New("--wait with --pause would wait for a rotation that does not go on; leave one out"))
	case len(steering) > 0:
	case f.Swap && f.To == "" && !f.Compromised:
		return process.Usage(errors.New("name the file of the signer to swap to with --to FILE; or steer the rotation that is under way with " +
			"--pause, --resume, --abort, --rollback, --accept WHO or --compromised"))
	case f.Swap && f.To == "" && f.Reason != "":
		return process.Usage(errors.New("--reason is that of a swap that begins; name the signer's file with --to FILE"))
	case len(f.Reason) > maxReason:
		return process.Usagef("--reason has %d bytes; %d are the most", len(f.Reason), maxReason)
	}
	if slices.Contains(f.Accept, "") {
		return process.Usage(errors.New("--accept: the name of a holder is empty; `fairlead ca status` names those that are waited for"))
	}
	return nil
}

// Order is what is sent to the ca.
type Order struct {
	// Commands are sent one after the other; all of them have one Action.
	Commands []caapi.Command
	// Question is asked before; empty for what harms nobody.
	Question string
}

// Begins reports whether the order begins a rotation.
func (o Order) Begins() bool {
	return slices.Contains([]string{caapi.Rotate, caapi.Swap}, o.Commands[0].Action)
}

// Order is what flags that passed Check mean for a ca of a status. file is the content of the signer file.
func (f Flags) Order(s *caapi.Status, file string) (Order, error) {
	idle := s.Step == Idle
	if set := f.steering(); len(set) > 0 && len(f.Accept) == 0 {
		return Order{Commands: []caapi.Command{{Action: set[0]}}}, nil
	}
	switch {
	case len(f.Accept) > 0:
		return f.accept(s)
	case f.Compromised && f.To == "" && !idle:
		if f.Reason != "" {
			return Order{}, process.Usagef("--reason is that of a rotation that begins, and one is under way (step %s); leave it out to say that "+
				"this one leads away from compromised keys", s.Step)
		}
		return Order{[]caapi.Command{{Action: caapi.Compromised}}, "The rotation that is under way treats the keys of the signer before as " +
			"compromised. " + harm + " Proceed?"}, nil
	case !idle:
		return Order{}, fmt.Errorf("a rotation is under way since %s (step %s): wait for its end (`fairlead ca status -w`), or end it with "+
			"`fairlead ca rotate --abort` or --rollback", s.Began.UTC().Format(time.RFC3339), s.Step)
	case f.Swap && f.To == "":
		return Order{}, errors.New("no rotation is under way that could be away from compromised keys; begin one with --to FILE --compromised")
	}
	command := caapi.Command{Action: caapi.Rotate, Reason: f.Reason, Compromised: f.Compromised}
	what := "The signer " + current(s) + " gets new keys and a new root"
	if f.Swap {
		command.Action, command.File = caapi.Swap, file
		what = "The signer of " + f.To + " takes the place of " + current(s)
	}
	question := fmt.Sprintf("%s; %s of certificates in trust domain %s get new ones.", what,
		count(s.Holders.Total, "holder", "holders"), s.TrustDomain)
	if f.Compromised {
		question += " " + harm
	}
	return Order{[]caapi.Command{command}, question + " Proceed?"}, nil
}

const harm = "An hour after the renewal begins it ends: who has not renewed by then is no longer trusted."

// current names the signer that issues.
func current(s *caapi.Status) string {
	signer := role(s, "current")
	if signer == nil {
		return "that issues now"
	}
	return fmt.Sprintf("%s (%s)", signer.Name, signer.Kind)
}

// accept is the order that the rotation goes on without holders. A mistyped name is refused before anything is sent, if
// the status lists all that are waited for; else the ca says so.
func (f Flags) accept(s *caapi.Status) (Order, error) {
	if s.Step == Idle {
		return Order{}, errors.New("no rotation is under way that would wait for anybody")
	}
	names := Names(s)
	var o Order
	for _, who := range f.Accept {
		if !slices.Contains(names, who) && s.Lagging.Total <= len(names) {
			return Order{}, fmt.Errorf("the rotation (step %s) does not wait for %q%s; `fairlead ca status` names those it waits for", s.Step, who,
				nearest.Hint(who, names))
		}
		o.Commands = append(o.Commands, caapi.Command{Action: caapi.Accept, Holder: who})
	}
	o.Question = fmt.Sprintf("The rotation goes on without %s: connections with it may fail until it has a new certificate. Proceed?",
		strings.Join(f.Accept, ", "))
	return o, nil
}

// Names are those that a step waits for, as --accept takes them.
func Names(s *caapi.Status) []string {
	return lists.Map(s.Lagging.First, func(h caapi.Holder) string { return h.Name })
}

// Done says in one line what has become of an order that was carried out, from the status after it.
func (o Order) Done(s *caapi.Status) string {
	switch first := o.Commands[0]; first.Action {
	case caapi.Rotate, caapi.Swap:
		return fmt.Sprintf("the rotation has begun (step %s); `fairlead ca status -w` follows it", s.Step)
	case caapi.Pause:
		return fmt.Sprintf("the rotation stays at step %s until `fairlead ca rotate --resume`", s.Step)
	case caapi.Resume:
		return fmt.Sprintf("the rotation goes on (step %s)", s.Step)
	case caapi.Abort, caapi.Rollback:
		if s.Step == Idle {
			return "the rotation has ended; signer " + current(s) + " issues"
		}
		return fmt.Sprintf("signer %s issues; the way back is at step %s", current(s), s.Step)
	case caapi.Compromised:
		return fmt.Sprintf("the keys of the signer before count as compromised (step %s)", s.Step)
	default:
		who := lists.Map(o.Commands, func(c caapi.Command) string { return c.Holder })
		return fmt.Sprintf("the rotation does not wait for %s (step %s)", strings.Join(who, ", "), s.Step)
	}
}
