package cli

import (
	"github.com/spf13/cobra"
)

const exitCodes = `Exit codes of fairlead and of Fairlead's services:

  0  it did what was asked, or was stopped by a signal and has ended everything
  1  it failed while running: a server that cannot be reached, a proxy that rejected or did not take a change in time,
     an address that is in use; or what was named does not exist: an object, a proxy, a namespace. A list without entries is
     no failure. manifest diff: something differs. precheck: something hinders an installation
  2  wrong usage: an unknown command or flag, a value that cannot be
  3  refused input: a mesh file or an object is not valid; the message names file, object, field and remedy, and nothing was
     changed

fairlead diff has one more:

  4  an installation would change something

fairlead analyze has two more, which are istioctl's:

  65 a text is no object
  79 it has found something as bad as --failure-threshold
`

func newExitCodes() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodes}
}
