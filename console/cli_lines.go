package console

// cliLines are the commands of operations. TestCommandsDoTheSame runs each of them and compares
// what it asks the API for with what the form does.
var cliLines = map[string]cliLine{}
