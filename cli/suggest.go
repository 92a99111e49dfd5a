package cli

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
)

// Harms is the annotation of commands that stop or remove something. They are never suggested for a mistyped word.
const Harms = "harms"

// harms marks a command by what the contract declares about its operation.
func harms(cmd *cobra.Command, v *api.Verb) *cobra.Command {
	if v.Impact.Exceeds(impact.Moves) || v.Method == http.MethodDelete {
		cmd.Annotations = map[string]string{Harms: "true"}
	}
	return cmd
}

// nearest are the words that are most similar to a word, if any is similar at all: at least two of its letters remain.
func nearest(word string, words []string) []string {
	near := &cobra.Command{}
	for _, w := range words {
		near.AddCommand(&cobra.Command{Use: w, Run: func(*cobra.Command, []string) {}})
	}
	for d := 0; word != "" && d <= min(2, max(0, len(word)-2)); d++ {
		near.SuggestionsMinimumDistance = d
		if found := near.SuggestionsFor(word); len(found) > 0 {
			return found
		}
	}
	return nil
}

// suggest names the similar word, if it is the only one.
func suggest(word string, words []string) string {
	if found := nearest(word, words); len(found) == 1 {
		return "; did you mean " + found[0] + "?"
	}
	return ""
}

// unknownCommand refuses the first argument of a command that only has subcommands. It suggests another command if
// only one is similar and does no harm. Words in the order of other programs ("get servers") are understood, too.
func unknownCommand(cmd *cobra.Command, args []string) error {
	advice := "; " + cmd.CommandPath() + " --help lists the commands"
	if name := meant(cmd, args[0]); name != "" {
		advice = "; did you mean " + name + "?"
	} else if !cmd.HasParent() && len(args) > 1 {
		if noun := child(cmd, meant(cmd, args[1])); noun != nil && noun.HasSubCommands() {
			advice = "; " + noun.CommandPath() + " --help lists the commands"
			if verb := cmp.Or(verbOf(noun, args[0]), "list"); child(noun, verb) != nil && !harmful(noun, args[0]) {
				advice = "; did you mean " + noun.CommandPath() + " " + verb + "?"
			}
		}
	}
	return usagef("unknown command %q for %q%s", args[0], cmd.CommandPath(), advice)
}

// elsewhere are verbs of other programs.
var elsewhere = map[string]string{"get": "list", "describe": "show"}

// verbOf is the harmless verb of a noun that a word stands for.
func verbOf(noun *cobra.Command, word string) string {
	if child(noun, word) == nil {
		word = cmp.Or(elsewhere[word], word)
	}
	return meant(noun, word)
}

// harmful reports whether a word resembles a command that does harm.
func harmful(cmd *cobra.Command, word string) bool {
	return slices.ContainsFunc(nearest(word, namesOf(cmd)), func(name string) bool {
		return child(cmd, name).Annotations[Harms] != ""
	})
}

// meant is the harmless command that a word resembles, "" if there is none or more than one.
func meant(cmd *cobra.Command, word string) string {
	found := slices.DeleteFunc(nearest(word, namesOf(cmd)), func(name string) bool {
		return child(cmd, name).Annotations[Harms] != ""
	})
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

func namesOf(cmd *cobra.Command) (names []string) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// child is the subcommand with a name, nil if there is none.
func child(cmd *cobra.Command, name string) *cobra.Command {
	i := slices.IndexFunc(cmd.Commands(), func(sub *cobra.Command) bool { return sub.Name() == name })
	if i < 0 {
		return nil
	}
	return cmd.Commands()[i]
}
